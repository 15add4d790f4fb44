/*
 * XSched: functions that the original C++ XSched lacks.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_EXTRA_H
#define XSCHED_EXTRA_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Why the last function of XSched that failed on this thread did, in words; empty if none has.
 * Valid until the next one fails on this thread.
 */
const char *XSchedLastError(void);

#ifdef __cplusplus
}
#endif

#endif
