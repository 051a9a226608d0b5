// What torch is told of the operators, and their gradients, as attnres/ops/library.py and normalised.py have them in
// Python for other devices and torch.func. The way through Python took several times as long as the kernel where rows
// are narrow (1,024 tokens of 16 channels).

#include "lanes.h"
#include "operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace attnres {

namespace {

const auto& attend_operator() {
  static const auto found =
      c10::Dispatcher::singleton().findSchemaOrThrow("attnres::attend", "").typed<decltype(attend)>();
  return found;
}

Forward call_attend(TensorList sources, TensorList queries, TensorList gains, TensorList prior, TensorList added,
                    double eps, double scale, at::ScalarType dtype, const Maybe& norm, double norm_eps,
                    double norm_offset) {
  const at::AutoDispatchBelowAutograd below;
  return attend_operator().call(sources, queries, gains, prior, added, eps, scale, dtype, norm, norm_eps, norm_offset);
}

void append(Tensors& to, TensorList more) { to.insert(to.end(), more.begin(), more.end()); }

// What was saved, or came back from the operator below, list by list.
class Lists {
 public:
  Lists(Tensors tensors, std::vector<int64_t> sizes) : tensors_(std::move(tensors)), sizes_(std::move(sizes)) {}
  TensorList next() {
    const TensorList list = TensorList(tensors_).slice(begin_, sizes_[number_]);
    begin_ += sizes_[number_++];
    return list;
  }

 private:
  Tensors tensors_;
  std::vector<int64_t> sizes_;
  int64_t begin_ = 0, number_ = 0;
};

struct AttendFunction : torch::autograd::Function<AttendFunction> {
  using Context = torch::autograd::AutogradContext;

  static Tensors forward(Context* ctx, TensorList sources, TensorList queries, TensorList gains, TensorList prior,
                         TensorList added, double eps, double scale, at::ScalarType dtype, const Maybe& norm,
                         double norm_eps, double norm_offset) {
    auto [outs, lses, sums, statistics] =
        call_attend(sources, queries, gains, prior, added, eps, scale, dtype, norm, norm_eps, norm_offset);
    // Only a merge needs its output again, and there the following norm keeps it anyway. Once rounded it no longer
    // serves: a query's gradient would lose digits without limit as the partial's weight nears 1. Once normalised it is
    // made again of the prior and the sources.
    const bool merges = !prior.empty(), keeps_prior = dtype != at::kFloat || norm.has_value();
    const size_t s = queries.size();
    Tensors saved;
    std::vector<int64_t> sizes;
    const auto save = [&](TensorList list) {
      append(saved, list);
      sizes.push_back(static_cast<int64_t>(list.size()));
    };
    Tensors as_read = sources.vec();
    if (!sums.empty()) as_read.back() = sums[0];
    Tensors needed_prior = merges ? prior.slice(s).vec() : Tensors{};
    if (keeps_prior && merges) append(needed_prior, prior.slice(0, s));
    save(as_read);
    save(queries);
    save(gains);
    save(merges && !keeps_prior ? TensorList(outs) : TensorList());
    save(lses);
    save(needed_prior);
    save(statistics);
    save(norm ? TensorList(*norm) : TensorList());
    ctx->saved_data["sizes"] = std::move(sizes);
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["norm_eps"] = norm_eps;
    ctx->saved_data["norm_offset"] = norm_offset;
    if (!added.empty()) {
      ctx->saved_data["source"] = sources.back().scalar_type();
      ctx->saved_data["added"] = added[0].scalar_type();
    }
    ctx->save_for_backward(std::move(saved));
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({statistics});
    Tensors flat = std::move(outs);
    append(flat, lses);
    append(flat, sums);
    flat.push_back(statistics);
    return flat;
  }

  static Tensors backward(Context* ctx, Tensors grads) {
    Lists saved(ctx->get_saved_variables(), ctx->saved_data["sizes"].toIntVector());
    const TensorList sources = saved.next(), queries = saved.next(), gains = saved.next(), outs = saved.next(),
                     lses = saved.next(), prior = saved.next();
    const Tensor statistics = saved.next()[0];
    const TensorList weight = saved.next();
    const std::optional<Tensor> norm = weight.empty() ? std::nullopt : std::optional(weight[0]);
    const size_t s = queries.size();
    Tensors grad_outs(grads.begin(), grads.begin() + s), grad_lses(grads.begin() + s, grads.begin() + 2 * s), grad_sums;
    for (Tensor& g : grad_outs)
      if (!g.defined()) g = at::zeros_like(sources.empty() ? prior[s] : sources[0], at::MemoryFormat::Contiguous);
    const auto given = [](const Tensor& g) { return g.defined(); };
    if (std::none_of(grad_lses.begin(), grad_lses.end(), given)) grad_lses.clear();
    for (size_t j = 0; j < grad_lses.size(); ++j)
      if (!grad_lses[j].defined()) grad_lses[j] = at::zeros_like(lses[j]);
    std::copy_if(grads.begin() + 2 * s, grads.end() - 1, std::back_inserter(grad_sums), given);

    static const auto backward_operator =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("attnres::attend_backward", "")
            .typed<decltype(attend_backward)>();
    const auto call = [&] {
      return backward_operator.call(grad_outs, grad_lses, grad_sums, sources, queries, gains, outs, lses, prior,
                                    statistics, ctx->saved_data["scale"].toDouble(), norm,
                                    ctx->saved_data["norm_eps"].toDouble(), ctx->saved_data["norm_offset"].toDouble());
    };
    // Asked for gradients or tangents of gradients, the operator refuses; else nothing on its way needs autograd.
    const bool asked = at::GradMode::is_enabled() || std::any_of(grads.begin(), grads.end(), [](const Tensor& g) {
      return g.defined() && g._fw_grad(0).defined();
    });
    auto [of_sources, of_queries, of_gains, of_prior] = asked ? call() : [&] {
      const at::AutoDispatchBelowAutograd below;
      return call();
    }();

    Tensors of_added;
    if (ctx->saved_data.count("added")) {  // both have the sum's gradient
      const Tensor of_sum = of_sources.back();
      const auto source = ctx->saved_data["source"].toScalarType(), added = ctx->saved_data["added"].toScalarType();
      of_sources.back() = of_sum.to(source);
      of_added.push_back(source == added ? of_sources.back() : of_sum.to(added));
    }
    Tensor of_norm;
    if (norm) {
      of_norm = std::move(of_gains.back());
      of_gains.pop_back();
    }
    Tensors all = std::move(of_sources);
    for (const Tensors* list : {&of_queries, &of_gains, &of_prior, &of_added}) append(all, *list);
    all.resize(all.size() + 3);  // of eps, scale and dtype
    all.insert(all.end(), {of_norm, Tensor(), Tensor()});
    return all;
  }
};

Forward attend_autograd(TensorList sources, TensorList queries, TensorList gains, TensorList prior, TensorList added,
                        double eps, double scale, at::ScalarType dtype, const Maybe& norm, double norm_eps,
                        double norm_offset) {
  // The levels of torch.func take no function of C++, and one of Python.
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode))
    return attend_operator().redispatch(c10::DispatchKeySet(c10::DispatchKey::AutogradOther), sources, queries, gains,
                                        prior, added, eps, scale, dtype, norm, norm_eps, norm_offset);
  const auto has_gradient = [](const Tensor& x) { return x.requires_grad(); };
  const auto any_has = [&](TensorList list) { return std::any_of(list.begin(), list.end(), has_gradient); };
  if (!at::GradMode::is_enabled() ||
      !(any_has(sources) || any_has(queries) || any_has(gains) || any_has(prior) || any_has(added) ||
        (norm && has_gradient(*norm))))
    return call_attend(sources, queries, gains, prior, added, eps, scale, dtype, norm, norm_eps, norm_offset);
  const Tensors flat = AttendFunction::apply(sources, queries, gains, prior, added, eps, scale, dtype, norm, norm_eps,
                                             norm_offset);
  const int64_t s = queries.size(), sums = added.size();
  Lists lists(flat, {s, s, sums});
  Tensors outs = lists.next().vec(), lses = lists.next().vec();
  return {std::move(outs), std::move(lses), lists.next().vec(), flat.back()};
}

const auto& add_normalised_operator() {
  static const auto found =
      c10::Dispatcher::singleton().findSchemaOrThrow("attnres::add_normalised", "").typed<decltype(add_normalised)>();
  return found;
}

bool is_wide(const Tensor& x) { return x.element_size() >= 4; }

struct AddNormalisedFunction : torch::autograd::Function<AddNormalisedFunction> {
  using Context = torch::autograd::AutogradContext;

  static Tensors forward(Context* ctx, const Tensor& y, TensorList total, TensorList raw, double eps,
                         at::ScalarType dtype) {
    const at::AutoDispatchBelowAutograd below;
    auto [out, sums, r] = add_normalised_operator().call(y, total, raw, eps, dtype);
    // Sites before and after keep the raw sums as their sources, so y need not be kept, too.
    const bool by_difference = !raw.empty() && is_wide(raw[0]) && is_wide(sums[0]);
    ctx->save_for_backward(by_difference ? Tensors{r, raw[0], sums[0]} : Tensors{r, y});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["y"] = y.scalar_type();
    if (!total.empty()) ctx->saved_data["total"] = total[0].scalar_type();
    if (!raw.empty()) ctx->saved_data["raw"] = raw[0].scalar_type();
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({r});
    Tensors flat{std::move(out)};
    append(flat, sums);
    flat.push_back(std::move(r));
    return flat;
  }

  static Tensors backward(Context* ctx, Tensors grads) {
    Tensors of = ctx->get_saved_variables();
    const Tensor r = of[0], grad = grads[0];
    of.erase(of.begin());
    const auto dtype = [&](const char* name) { return ctx->saved_data[name].toScalarType(); };
    const auto in = [](const Tensor& x, at::ScalarType type) { return x.defined() ? x.to(type) : x; };
    const bool has_raw = ctx->saved_data.count("raw");
    const Tensor of_sum = has_raw ? grads[1] : Tensor();
    Tensor of_y = in(of_sum, dtype("y"));
    if (grad.defined() && at::GradMode::is_enabled()) {  // to be differentiated again: of torch's own operators
      const Tensor y = of.size() == 2 ? of[1] - of[0] : of[0];
      const Tensor wide = y.to(c10::promoteTypes(y.scalar_type(), at::kFloat)), g = grad.to(wide.scalar_type());
      const Tensor again = (wide.square().mean(-1, true) + ctx->saved_data["eps"].toDouble()).rsqrt();
      const Tensor of_norm = again * (g - wide * again * ((g * wide).mean(-1, true) * again));
      of_y = (of_sum.defined() ? of_norm + of_sum : of_norm).to(dtype("y"));
    } else if (grad.defined()) {
      const at::AutoDispatchBelowAutograd below;
      static const auto backward_operator =
          c10::Dispatcher::singleton()
              .findSchemaOrThrow("attnres::add_normalised_backward", "")
              .typed<decltype(add_normalised_backward)>();
      of_y = backward_operator.call(grad, of_sum.defined() ? TensorList(of_sum) : TensorList(), of, r, dtype("y"));
    }
    Tensors all{of_y};
    if (ctx->saved_data.count("total")) all.push_back(in(grad, dtype("total")));
    if (has_raw) all.push_back(in(of_sum, dtype("raw")));
    all.resize(all.size() + 2);  // of eps and dtype
    return all;
  }
};

std::tuple<Tensor, Tensors, Tensor> add_normalised_autograd(const Tensor& y, TensorList total, TensorList raw,
                                                            double eps, at::ScalarType dtype) {
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode))
    return add_normalised_operator().redispatch(c10::DispatchKeySet(c10::DispatchKey::AutogradOther), y, total, raw,
                                                eps, dtype);
  const auto has_gradient = [](const Tensor& x) { return x.requires_grad(); };
  if (!at::GradMode::is_enabled() || !(y.requires_grad() || std::any_of(total.begin(), total.end(), has_gradient) ||
                                       std::any_of(raw.begin(), raw.end(), has_gradient))) {
    const at::AutoDispatchBelowAutograd below;
    return add_normalised_operator().call(y, total, raw, eps, dtype);
  }
  const Tensors flat = AddNormalisedFunction::apply(y, total, raw, eps, dtype);
  return {flat.front(), {flat.begin() + 1, flat.end() - 1}, flat.back()};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("attend", &attend);
  m.impl("attend_one", &attend_one);
  m.impl("attend_backward", &attend_backward);
  m.impl("add_normalised", &add_normalised);
  m.impl("add_normalised_backward", &add_normalised_backward);
}

TORCH_LIBRARY_IMPL(attnres, AutogradCPU, m) {
  m.impl("attend", &attend_autograd);
  m.impl("add_normalised", &add_normalised_autograd);
}

// What this library says of itself, and its memory.
TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("cpu_trim() -> int", &trim);
  m.def("cpu_instruction_set() -> str", [] { return std::string(kInstructionSet); });
}

}  // namespace attnres

// What the headers would ask of newer libraries. With this here a wheel loads where these are older, too:
// std::shared_ptr of glibc from 2.32 on, and torch 2.11 of libstdc++ from GCC 11 on.
#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 11
template std::string std::stringbuf::str() const&;
#endif
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
