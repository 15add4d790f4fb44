/*
  * Makes a program open the driver at run time instead of linking it, as most programs do. To be included first, with REACH
  * set to 1 for `dlsym`, or to 2 for `cuGetProcAddress`, which the CUDA runtime uses.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "standin_cuda.h"

/* The exported name, and the plain name. */
#define FUNCTIONS(X) \
    X(cuInit, "cuInit") X(cuGetErrorName, "cuGetErrorName") X(cuDeviceGet, "cuDeviceGet") \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute") X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain") \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease") X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset") \
    X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState") X(cuCtxCreate_v2, "cuCtxCreate") \
    X(cuCtxDestroy_v2, "cuCtxDestroy") X(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync") \
    X(cuCtxGetCurrent, "cuCtxGetCurrent") X(cuCtxSetCurrent, "cuCtxSetCurrent") \
    X(cuCtxPushCurrent_v2, "cuCtxPushCurrent") X(cuCtxPopCurrent_v2, "cuCtxPopCurrent") \
    X(cuCtxSynchronize, "cuCtxSynchronize") X(cuMemAlloc_v2, "cuMemAlloc") X(cuMemFree_v2, "cuMemFree") \
    X(cuMemHostAlloc, "cuMemHostAlloc") X(cuMemFreeHost, "cuMemFreeHost") \
    X(cuMemHostRegister_v2, "cuMemHostRegister") X(cuMemHostUnregister, "cuMemHostUnregister") \
    X(cuMemHostGetDevicePointer_v2, "cuMemHostGetDevicePointer") X(cuMemcpyDtoH_v2, "cuMemcpyDtoH") \
    X(cuMemsetD32_v2, "cuMemsetD32") X(cuModuleLoadData, "cuModuleLoadData") \
    X(cuModuleGetFunction, "cuModuleGetFunction") X(cuLaunchKernel, "cuLaunchKernel") \
    X(cuLaunchKernelEx, "cuLaunchKernelEx") X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel") \
    X(cuLaunchHostFunc, "cuLaunchHostFunc") X(cuStreamCreate, "cuStreamCreate") \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority") \
    X(cuStreamDestroy_v2, "cuStreamDestroy") X(cuStreamSynchronize, "cuStreamSynchronize") \
    X(cuStreamQuery, "cuStreamQuery") X(cuStreamWaitEvent, "cuStreamWaitEvent") \
    X(cuStreamWaitValue32_v2, "cuStreamWaitValue32") X(cuStreamWriteValue32_v2, "cuStreamWriteValue32") \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture") X(cuStreamEndCapture, "cuStreamEndCapture") \
    X(cuStreamIsCapturing, "cuStreamIsCapturing") \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode") X(cuEventCreate, "cuEventCreate") \
    X(cuEventRecord, "cuEventRecord") X(cuEventQuery, "cuEventQuery") X(cuEventSynchronize, "cuEventSynchronize") \
    X(cuEventElapsedTime, "cuEventElapsedTime") X(cuEventDestroy_v2, "cuEventDestroy") \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiate") X(cuGraphLaunch, "cuGraphLaunch") \
    X(cuGraphDestroy, "cuGraphDestroy") X(cuGraphExecDestroy, "cuGraphExecDestroy") \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem") X(cuMemGetInfo_v2, "cuMemGetInfo") \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch") X(cuMemAllocManaged, "cuMemAllocManaged") \
    X(cuArrayCreate_v2, "cuArrayCreate") X(cuArray3DCreate_v2, "cuArray3DCreate") \
    X(cuArrayDestroy, "cuArrayDestroy") X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate") \
    X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy") X(cuMemCreate, "cuMemCreate") \
    X(cuMemRelease, "cuMemRelease") X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle") \
    X(cuMemAddressReserve, "cuMemAddressReserve") X(cuMemAddressFree, "cuMemAddressFree") X(cuMemMap, "cuMemMap") \
    X(cuMemUnmap, "cuMemUnmap") X(cuMemSetAccess, "cuMemSetAccess") X(cuMemPoolCreate, "cuMemPoolCreate") \
    X(cuMemPoolDestroy, "cuMemPoolDestroy") X(cuMemPoolTrimTo, "cuMemPoolTrimTo") \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute") X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute") \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool") X(cuDeviceSetMemPool, "cuDeviceSetMemPool") \
    X(cuMemAllocAsync, "cuMemAllocAsync") X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync") \
    X(cuMemFreeAsync, "cuMemFreeAsync") X(cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute") \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim") X(cuMemcpyHtoD_v2, "cuMemcpyHtoD") \
    X(cuMemcpyDtoD_v2, "cuMemcpyDtoD") X(cuMemsetD32Async, "cuMemsetD32Async") \
    X(cuPointerGetAttribute, "cuPointerGetAttribute") X(cuPointerGetAttributes, "cuPointerGetAttributes") \
    X(cuMemGetAddressRange_v2, "cuMemGetAddressRange") X(cuIpcGetMemHandle, "cuIpcGetMemHandle")

#define DECLARE(name, base) static __typeof__(name) *reached_##name __attribute__((unused));
FUNCTIONS(DECLARE)
static __typeof__(cuLaunchKernel_ptsz) *reached_cuLaunchKernel_ptsz __attribute__((unused));
static __typeof__(cuStreamSynchronize_ptsz) *reached_cuStreamSynchronize_ptsz __attribute__((unused));

/* From CUDA 13 on the plain name means a form that takes a context. */
static __typeof__(cuCtxSynchronize_v2) *reached_cuCtxSynchronize_v2;
static CUresult synchronize_no_context(void) { return reached_cuCtxSynchronize_v2(NULL); }

static void *reach(void *driver, const char *name, const char *base, int flags) {
    void *found = NULL;
    if (REACH == 1) {
        (void)base, (void)flags;
        found = dlsym(driver, name);
    } else {
        int status = -1;
        __typeof__(cuGetProcAddress_v2) *first = (__typeof__(cuGetProcAddress_v2) *)dlsym(driver, "cuGetProcAddress_v2"), *look;
        if (first == NULL || first("cuGetProcAddress", (void **)&look, 13000, 0, &status) != 0 ||
            look(base, &found, 13000, flags, &status) != 0) {
            found = NULL;
        }
    }
    if (found == NULL) {
        fprintf(stderr, "%s was not found in the driver\n", name);
        exit(71);
    }
    return found;
}

__attribute__((constructor)) static void reach_all(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(71);
    }
#define REACH_ONE(name, base) reached_##name = (__typeof__(name) *)reach(driver, #name, base, 0);
    FUNCTIONS(REACH_ONE)
    if (REACH == 2) {
        reached_cuCtxSynchronize_v2 = (__typeof__(cuCtxSynchronize_v2) *)(void *)reached_cuCtxSynchronize;
        reached_cuCtxSynchronize = synchronize_no_context;
    }
    reached_cuLaunchKernel_ptsz = (__typeof__(cuLaunchKernel_ptsz) *)reach(driver, "cuLaunchKernel_ptsz", "cuLaunchKernel", 2);
    reached_cuStreamSynchronize_ptsz =
        (__typeof__(cuStreamSynchronize_ptsz) *)reach(driver, "cuStreamSynchronize_ptsz", "cuStreamSynchronize", 2);
}

#define cuInit (*reached_cuInit)
#define cuGetErrorName (*reached_cuGetErrorName)
#define cuDeviceGet (*reached_cuDeviceGet)
#define cuDeviceGetAttribute (*reached_cuDeviceGetAttribute)
#define cuDevicePrimaryCtxRetain (*reached_cuDevicePrimaryCtxRetain)
#define cuDevicePrimaryCtxRelease_v2 (*reached_cuDevicePrimaryCtxRelease_v2)
#define cuDevicePrimaryCtxReset_v2 (*reached_cuDevicePrimaryCtxReset_v2)
#define cuDevicePrimaryCtxGetState (*reached_cuDevicePrimaryCtxGetState)
#define cuCtxCreate_v2 (*reached_cuCtxCreate_v2)
#define cuCtxDestroy_v2 (*reached_cuCtxDestroy_v2)
#define cuMemcpyDtoHAsync_v2 (*reached_cuMemcpyDtoHAsync_v2)
#define cuCtxGetCurrent (*reached_cuCtxGetCurrent)
#define cuCtxSetCurrent (*reached_cuCtxSetCurrent)
#define cuCtxPushCurrent_v2 (*reached_cuCtxPushCurrent_v2)
#define cuCtxPopCurrent_v2 (*reached_cuCtxPopCurrent_v2)
#define cuCtxSynchronize (*reached_cuCtxSynchronize)
#define cuMemAlloc_v2 (*reached_cuMemAlloc_v2)
#define cuMemFree_v2 (*reached_cuMemFree_v2)
#define cuMemHostAlloc (*reached_cuMemHostAlloc)
#define cuMemFreeHost (*reached_cuMemFreeHost)
#define cuMemHostRegister_v2 (*reached_cuMemHostRegister_v2)
#define cuMemHostUnregister (*reached_cuMemHostUnregister)
#define cuMemHostGetDevicePointer_v2 (*reached_cuMemHostGetDevicePointer_v2)
#define cuMemcpyDtoH_v2 (*reached_cuMemcpyDtoH_v2)
#define cuMemsetD32_v2 (*reached_cuMemsetD32_v2)
#define cuMemcpyHtoD_v2 (*reached_cuMemcpyHtoD_v2)
#define cuMemcpyDtoD_v2 (*reached_cuMemcpyDtoD_v2)
#define cuMemsetD32Async (*reached_cuMemsetD32Async)
#define cuPointerGetAttribute (*reached_cuPointerGetAttribute)
#define cuPointerGetAttributes (*reached_cuPointerGetAttributes)
#define cuMemGetAddressRange_v2 (*reached_cuMemGetAddressRange_v2)
#define cuIpcGetMemHandle (*reached_cuIpcGetMemHandle)
#define cuModuleLoadData (*reached_cuModuleLoadData)
#define cuModuleGetFunction (*reached_cuModuleGetFunction)
#define cuLaunchKernel (*reached_cuLaunchKernel)
#define cuLaunchKernel_ptsz (*reached_cuLaunchKernel_ptsz)
#define cuLaunchKernelEx (*reached_cuLaunchKernelEx)
#define cuLaunchCooperativeKernel (*reached_cuLaunchCooperativeKernel)
#define cuLaunchHostFunc (*reached_cuLaunchHostFunc)
#define cuStreamCreateWithPriority (*reached_cuStreamCreateWithPriority)
#define cuStreamCreate (*reached_cuStreamCreate)
#define cuStreamDestroy_v2 (*reached_cuStreamDestroy_v2)
#define cuStreamSynchronize (*reached_cuStreamSynchronize)
#define cuStreamSynchronize_ptsz (*reached_cuStreamSynchronize_ptsz)
#define cuStreamQuery (*reached_cuStreamQuery)
#define cuStreamWaitEvent (*reached_cuStreamWaitEvent)
#define cuStreamWaitValue32_v2 (*reached_cuStreamWaitValue32_v2)
#define cuStreamWriteValue32_v2 (*reached_cuStreamWriteValue32_v2)
#define cuStreamBeginCapture_v2 (*reached_cuStreamBeginCapture_v2)
#define cuStreamEndCapture (*reached_cuStreamEndCapture)
#define cuStreamIsCapturing (*reached_cuStreamIsCapturing)
#define cuThreadExchangeStreamCaptureMode (*reached_cuThreadExchangeStreamCaptureMode)
#define cuEventCreate (*reached_cuEventCreate)
#define cuEventRecord (*reached_cuEventRecord)
#define cuEventQuery (*reached_cuEventQuery)
#define cuEventSynchronize (*reached_cuEventSynchronize)
#define cuEventElapsedTime (*reached_cuEventElapsedTime)
#define cuEventDestroy_v2 (*reached_cuEventDestroy_v2)
#define cuGraphInstantiateWithFlags (*reached_cuGraphInstantiateWithFlags)
#define cuGraphLaunch (*reached_cuGraphLaunch)
#define cuGraphDestroy (*reached_cuGraphDestroy)
#define cuGraphExecDestroy (*reached_cuGraphExecDestroy)
#define cuDeviceTotalMem_v2 (*reached_cuDeviceTotalMem_v2)
#define cuMemGetInfo_v2 (*reached_cuMemGetInfo_v2)
#define cuMemAllocPitch_v2 (*reached_cuMemAllocPitch_v2)
#define cuMemAllocManaged (*reached_cuMemAllocManaged)
#define cuArrayCreate_v2 (*reached_cuArrayCreate_v2)
#define cuArray3DCreate_v2 (*reached_cuArray3DCreate_v2)
#define cuArrayDestroy (*reached_cuArrayDestroy)
#define cuMipmappedArrayCreate (*reached_cuMipmappedArrayCreate)
#define cuMipmappedArrayDestroy (*reached_cuMipmappedArrayDestroy)
#define cuMemCreate (*reached_cuMemCreate)
#define cuMemRelease (*reached_cuMemRelease)
#define cuMemRetainAllocationHandle (*reached_cuMemRetainAllocationHandle)
#define cuMemAddressReserve (*reached_cuMemAddressReserve)
#define cuMemAddressFree (*reached_cuMemAddressFree)
#define cuMemMap (*reached_cuMemMap)
#define cuMemUnmap (*reached_cuMemUnmap)
#define cuMemSetAccess (*reached_cuMemSetAccess)
#define cuMemPoolCreate (*reached_cuMemPoolCreate)
#define cuMemPoolDestroy (*reached_cuMemPoolDestroy)
#define cuMemPoolTrimTo (*reached_cuMemPoolTrimTo)
#define cuMemPoolGetAttribute (*reached_cuMemPoolGetAttribute)
#define cuMemPoolSetAttribute (*reached_cuMemPoolSetAttribute)
#define cuDeviceGetDefaultMemPool (*reached_cuDeviceGetDefaultMemPool)
#define cuDeviceSetMemPool (*reached_cuDeviceSetMemPool)
#define cuMemAllocAsync (*reached_cuMemAllocAsync)
#define cuMemAllocFromPoolAsync (*reached_cuMemAllocFromPoolAsync)
#define cuMemFreeAsync (*reached_cuMemFreeAsync)
#define cuDeviceGetGraphMemAttribute (*reached_cuDeviceGetGraphMemAttribute)
#define cuDeviceGraphMemTrim (*reached_cuDeviceGraphMemTrim)
