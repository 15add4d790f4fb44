/* The C interface on a stream. */
#include "acl.h"

#include "xsched/ascend/hal.h"
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
    aclrtStream stream = new_stream();
    HwQueueHandle hwq;
    XQueueHandle xq;
    EXPECT(kXSchedErrorInvalidValue, AclQueueCreate(NULL, stream));
    EXPECT(kXSchedErrorInvalidValue, AclQueueCreate(&hwq, NULL));
    OK(AclQueueCreate(&hwq, stream));
    EXPECT(kXSchedErrorNotSupported, XQueueCreate(&xq, hwq, kPreemptLevelDeactivate, 0));
    OK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, 0));
    for (int n = 0; n < 50; n++) increment(100, counter, stream);
    OK(XQueueWaitAll(xq));
    OK(HwQueueSynchronize(hwq));
    if (*counter != 50) return 2;
    OK(XQueueDestroy(xq));
    OK(HwQueueDestroy(hwq));
    must(aclrtDestroyStream(stream), "destroy");
    puts("correct");
    return 0;
}
