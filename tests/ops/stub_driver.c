/* As much of a CUDA driver as Triton's launcher calls, for a machine without one: it keeps the last launch. */
#include <cuda.h>
#include <string.h>

int modules_loaded = 0;
unsigned launched_grid[3], launched_block, launched_shared;
int expected_count;           /* of parameters, and the bytes of each: set before a launch */
int expected_sizes[1024];
unsigned char launched[8192]; /* the parameters' bytes, one behind the other */

CUresult cuGetErrorString(CUresult code, const char **text) { *text = "stub"; return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { return cuCtxGetCurrent(context); }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 0; return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute name, int value) { return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute name, CUfunction function) {
  *value = name == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute name, CUdevice device) {
  *value = name == CU_DEVICE_ATTRIBUTE_WARP_SIZE ? 32 : 232448; /* the shared memory that an H100 lets a CTA have */
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  *module = (CUmodule)(long)++modules_loaded;
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)module;
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute name, CUdeviceptr pointer) {
  *(CUdeviceptr *)value = pointer;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  unsigned char *to = launched;
  launched_grid[0] = config->gridDimX, launched_grid[1] = config->gridDimY, launched_grid[2] = config->gridDimZ;
  launched_block = config->blockDimX, launched_shared = config->sharedMemBytes;
  for (int i = 0; i < expected_count; ++i, to += expected_sizes[i - 1]) memcpy(to, parameters[i], expected_sizes[i]);
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config) {
  *count = 1;
  return CUDA_SUCCESS;
}
