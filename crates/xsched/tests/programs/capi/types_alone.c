/* What a program gets from xsched/types.h alone, as from that of the original C++ XSched. */
#include "xsched/types.h"

static XResult launch(HwQueueHandle hwq, void *data) {
    *(HwQueueHandle *)data = hwq;
    return kXSchedSuccess;
}

int main(void) {
    /* size_t and NULL: the original's programs do not include <stddef.h> themselves. */
    size_t k = 1;
    LaunchCallback callback = launch;
    Priority priorities[] = {PRIORITY_NO_EXECUTE, PRIORITY_MIN, PRIORITY_DEFAULT, PRIORITY_MAX};
    Utilization shares[] = {UTILIZATION_MIN, UTILIZATION_DEFAULT, UTILIZATION_MAX};
    Timeslice slices[] = {TIMESLICE_MIN, TIMESLICE_DEFAULT, TIMESLICE_MAX};
    Laxity laxity = NO_LAXITY;
    Deadline deadline = NO_DEADLINE;
    HwQueueHandle seen = 0;
    if (callback == NULL || callback(7, &seen) != kXSchedSuccess || seen != 7 || k != 1) return 1;
    if (priorities[0] != -256 || shares[1] != 100 || slices[2] != 10000000) return 2;
    return laxity == -1 && deadline == -1 && TIMESLICE_UNLIMITED == UINT64_MAX ? 0 : 3;
}
