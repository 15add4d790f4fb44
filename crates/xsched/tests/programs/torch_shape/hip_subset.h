/* The functions and constants of HIP that the program uses, for a build without AMD's headers. */
#ifndef HIP_SUBSET_H
#define HIP_SUBSET_H

#include <stddef.h>
#include <stdint.h>

typedef int hipError_t;
typedef int hipDevice_t;
typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;
typedef struct ihipGraph *hipGraph_t;
typedef struct hipGraphExec *hipGraphExec_t;
typedef struct ihipModule_t *hipModule_t;
typedef struct ihipModuleSymbol_t *hipFunction_t;
typedef struct { uint32_t x, y, z; } dim3;
typedef int hipStreamCaptureMode;

enum { hipSuccess = 0, hipErrorOutOfMemory = 2, hipErrorNotReady = 600 };
enum { hipMemcpyHostToDevice = 1, hipMemcpyDeviceToHost = 2, hipMemcpyDeviceToDevice = 3 };
enum { hipStreamNonBlocking = 1, hipEventDisableTiming = 2, hipHostMallocDefault = 0 };
enum { hipStreamCaptureModeGlobal, hipStreamCaptureModeThreadLocal, hipStreamCaptureModeRelaxed };
#define hipStreamPerThread ((hipStream_t)2)

hipError_t hipInit(unsigned);
hipError_t hipGetDeviceCount(int *);
hipError_t hipGetDevice(int *);
hipError_t hipSetDevice(int);
hipError_t hipDeviceGetStreamPriorityRange(int *, int *);
hipError_t hipDeviceSynchronize(void);
hipError_t hipGetLastError(void);
hipError_t hipPeekAtLastError(void);
hipError_t hipStreamCreateWithPriority(hipStream_t *, unsigned, int);
hipError_t hipStreamSynchronize(hipStream_t);
hipError_t hipStreamQuery(hipStream_t);
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned);
hipError_t hipStreamBeginCapture(hipStream_t, hipStreamCaptureMode);
hipError_t hipStreamEndCapture(hipStream_t, hipGraph_t *);
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *);
hipError_t hipGraphGetNodes(hipGraph_t, void *, size_t *);
hipError_t hipGraphInstantiate(hipGraphExec_t *, hipGraph_t, void *, char *, size_t);
hipError_t hipGraphLaunch(hipGraphExec_t, hipStream_t);
hipError_t hipGraphExecDestroy(hipGraphExec_t);
hipError_t hipGraphDestroy(hipGraph_t);
hipError_t hipLaunchHostFunc(hipStream_t, void (*)(void *), void *);
hipError_t hipEventCreateWithFlags(hipEvent_t *, unsigned);
hipError_t hipEventRecord(hipEvent_t, hipStream_t);
hipError_t hipEventQuery(hipEvent_t);
hipError_t hipEventSynchronize(hipEvent_t);
hipError_t hipEventDestroy(hipEvent_t);
hipError_t hipMalloc(void **, size_t);
hipError_t hipMallocAsync(void **, size_t, hipStream_t);
hipError_t hipFree(void *);
hipError_t hipFreeAsync(void *, hipStream_t);
hipError_t hipHostMalloc(void **, size_t, unsigned);
hipError_t hipHostFree(void *);
hipError_t hipMemcpyAsync(void *, const void *, size_t, int, hipStream_t);
hipError_t hipMemsetAsync(void *, int, size_t, hipStream_t);
hipError_t hipMemGetInfo(size_t *, size_t *);
hipError_t hipLaunchKernel(const void *, dim3, dim3, void **, size_t, hipStream_t);
hipError_t hipLaunchKernel_spt(const void *, dim3, dim3, void **, size_t, hipStream_t);

#endif
