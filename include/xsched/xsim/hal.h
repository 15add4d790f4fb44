/*
 * XSched for the simulated device.
 *
 * Made from the library's own sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_XSIM_HAL_H
#define XSCHED_XSIM_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As the vendor's own header declares it. */
struct xsim_queue;

/** Makes a queue of the simulated device known. The queue has to outlive the handle. */
XResult XsimQueueCreate(HwQueueHandle *hwq, struct xsim_queue *queue);

#ifdef __cplusplus
}
#endif

#endif
