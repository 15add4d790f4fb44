/*
 * A library with names of CUDA that launches through HIP, as CuPy's for AMD GPUs: it exports the functions and calls them by
 * name. Its kernels are functions of a module.
 */
#include <stdio.h>
#include <stdlib.h>
#include "hip.h"

int cuLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, hipStream_t stream, void **args, void **extra) {
    return hipModuleLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, args, extra);
}

int cuLaunchCooperativeKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, hipStream_t stream, void **args) {
    return hipModuleLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared, stream, args);
}

int cuStreamSynchronize(hipStream_t stream) { return hipStreamSynchronize(stream); }

#ifdef COMPLETE
/* All names by which the driver is recognized, as in a library that implements all of CUDA on HIP. */
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { return version == NULL; }
int cuDeviceGetCount(int *count) { return hipGetDeviceCount(count); }
int cuCtxPushCurrent_v2(void *context) { return context == NULL; }
#endif

/* Runs two kernels of 1 ms. Returns how many launches arrived so far, or a negative error. */
long borrowed_round(void) {
    static hipFunction_t spin, increment;
    static uint64_t *counter;
    uint64_t ns = 1000000;
    void *spin_args[] = {&ns}, *increment_args[] = {&counter};
    int code = 0;
    if (spin == NULL) {
        hipModule_t module;
        code = hipMalloc((void **)&counter, 8);
        if (code == 0) code = hipModuleLoadData(&module, &module);
        if (code == 0) code = hipModuleGetFunction(&increment, module, "increment");
        if (code == 0) code = hipModuleGetFunction(&spin, module, "spin");
    }
    if (code == 0) code = cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, spin_args, NULL);
    if (code == 0) code = cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, spin_args);
    if (code == 0) code = cuLaunchKernel(increment, 1, 1, 1, 1, 1, 1, 0, NULL, increment_args, NULL);
    if (code == 0) code = cuStreamSynchronize(NULL);
    return code == 0 ? (long)*counter : -code;
}
