/* The C interface on a Level Zero queue. */
#include "ze.h"

#include "xsched/levelzero/hal.h"
#include "xsched/xsched.h"

#define EXPECT(code, call)                                      \
    do {                                                        \
        XResult result = (call);                                \
        if (result != (code)) {                                 \
            printf("%s: %d (%s)\n", #call, result, XSchedLastError()); \
            return 1;                                           \
        }                                                       \
    } while (0)
#define OK(call) EXPECT(kXSchedSuccess, call)

int main(void) {
    open_device();
    uint64_t *counter = new_memory(sizeof *counter);
    *counter = 0;
    ze_kernel_handle_t kernel = new_increment(100, counter);
    ze_command_list_handle_t list = new_list();
    launch(list, kernel, NULL, 0, NULL);
    must(CALL(zeCommandListClose)(list), "close");
    ze_command_queue_handle_t queue = new_queue(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    HwQueueHandle hwq;
    XQueueHandle xq;
    EXPECT(kXSchedErrorInvalidValue, ZeQueueCreate(NULL, device, queue));
    EXPECT(kXSchedErrorInvalidValue, ZeQueueCreate(&hwq, NULL, queue));
    EXPECT(kXSchedErrorInvalidValue, ZeQueueCreate(&hwq, device, NULL));
    OK(ZeQueueCreate(&hwq, device, queue));
    EXPECT(kXSchedErrorNotSupported, XQueueCreate(&xq, hwq, kPreemptLevelDeactivate, 0));
    OK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, 0));
    for (int n = 0; n < 50; n++) execute(queue, list, NULL);
    OK(XQueueWaitAll(xq));
    OK(HwQueueSynchronize(hwq));
    if (*counter != 50) return 2;
    OK(XQueueDestroy(xq));
    OK(HwQueueDestroy(hwq));
    must(CALL(zeCommandQueueDestroy)(queue), "destroy");
    puts("correct");
    return 0;
}
