/*
 * XSched for VPI.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_VPI_HAL_H
#define XSCHED_VPI_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC system_header
#endif
/* As the vendor's own header declares it, which may be included before or after this one. */
typedef struct VPIStreamImpl *VPIStream;

/** Creates a handle for a stream of the current context. The stream has to outlive the handle. */
XResult VpiQueueCreate(HwQueueHandle *hwq, VPIStream stream);

#ifdef __cplusplus
}
#endif

#endif
