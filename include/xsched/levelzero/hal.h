/*
 * XSched for Level Zero.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_LEVELZERO_HAL_H
#define XSCHED_LEVELZERO_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC system_header
#endif
/* As the vendor's own header declares it, which may be included before or after this one. */
typedef struct _ze_command_queue_handle_t *ze_command_queue_handle_t;
typedef struct _ze_device_handle_t *ze_device_handle_t;

/** Creates a handle for a Level Zero command queue, whose creation this library has intercepted. The queue has to outlive the handle. */
XResult ZeQueueCreate(HwQueueHandle *hwq, ze_device_handle_t dev, ze_command_queue_handle_t cmdq);

#ifdef __cplusplus
}
#endif

#endif
