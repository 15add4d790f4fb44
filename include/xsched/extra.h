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
 * Returns the reason of the last error of XSched on this thread as text; empty if there was none.
 * The text is valid until the next error on this thread.
 */
const char *XSchedLastError(void);

#ifdef __cplusplus
}
#endif

#endif
