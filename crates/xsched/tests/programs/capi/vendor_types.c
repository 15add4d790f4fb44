/* The vendors' queue types: declared by XSched's headers alone, and compatible with the vendors' own declarations, which are
 * repeated here, before (VENDOR_FIRST) and after them. Also compiled as C++. */
#define VENDOR_DECLARATIONS                             \
    typedef struct CUstream_st *CUstream;               \
    typedef struct ihipStream_t *hipStream_t;           \
    typedef struct _cl_command_queue *cl_command_queue; \
    typedef struct _ze_device_handle_t *ze_device_handle_t; \
    typedef struct _ze_command_queue_handle_t *ze_command_queue_handle_t; \
    typedef void *aclrtStream;                          \
    typedef struct CUstream_st *cudaStream_t;           \
    typedef struct VPIStreamImpl *VPIStream;

#ifdef VENDOR_FIRST
VENDOR_DECLARATIONS
#endif

#include "xsched/ascend/hal.h"
#include "xsched/corex/hal.h"
#include "xsched/cuda/hal.h"
#include "xsched/cudla/hal.h"
#include "xsched/hip/hal.h"
#include "xsched/levelzero/hal.h"
#include "xsched/opencl/hal.h"
#include "xsched/vpi/hal.h"

#ifdef VENDOR_AFTER
VENDOR_DECLARATIONS
#endif

int main(void) {
    CUstream cuda = NULL;
    hipStream_t hip = NULL;
    cl_command_queue opencl = NULL;
    XResult (*create_cuda)(HwQueueHandle *, CUstream) = CudaQueueCreate;
    XResult (*get_cuda)(HwQueueHandle *, CUstream) = CudaQueueGet;
    XResult (*create_hip)(HwQueueHandle *, hipStream_t) = HipQueueCreate;
    XResult (*create_opencl)(HwQueueHandle *, cl_command_queue) = OclQueueCreate;
    XResult (*create_level_zero)(HwQueueHandle *, ze_device_handle_t, ze_command_queue_handle_t) = ZeQueueCreate;
    XResult (*create_ascend)(HwQueueHandle *, aclrtStream) = AclQueueCreate;
    XResult (*create_cudla)(HwQueueHandle *, cudaStream_t) = CudlaQueueCreate;
    XResult (*create_vpi)(HwQueueHandle *, VPIStream) = VpiQueueCreate;
    XResult (*create_corex)(HwQueueHandle *, cudaStream_t) = CorexQueueCreate;
    XResult (*get_corex)(HwQueueHandle *, cudaStream_t) = CorexQueueGet;
    /* A null result pointer is rejected before the stream is looked at. */
    if (create_cuda(NULL, cuda) != kXSchedErrorInvalidValue || get_cuda(NULL, cuda) != kXSchedErrorInvalidValue) return 1;
    if (create_hip(NULL, hip) != kXSchedErrorInvalidValue) return 2;
    if (create_level_zero(NULL, NULL, NULL) != kXSchedErrorInvalidValue) return 4;
    if (create_ascend(NULL, NULL) != kXSchedErrorInvalidValue) return 5;
    if (create_cudla(NULL, NULL) != kXSchedErrorInvalidValue) return 6;
    if (create_vpi(NULL, NULL) != kXSchedErrorInvalidValue) return 7;
    if (create_corex(NULL, NULL) != kXSchedErrorInvalidValue || get_corex(NULL, NULL) != kXSchedErrorInvalidValue) return 8;
    return create_opencl(NULL, opencl) == kXSchedErrorInvalidValue ? 0 : 3;
}
