/*
 * XSched: everything that is independent of a vendor.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_XSCHED_H
#define XSCHED_XSCHED_H

#include "xsched/types.h"
#include "xsched/xqueue.h"
#include "xsched/hint.h"
#include "xsched/extra.h"

#endif
