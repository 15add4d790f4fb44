/*
 * XSched: all that needs no vendor's header.
 *
 * Made from the library's own sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_XSCHED_H
#define XSCHED_XSCHED_H

#include "xsched/types.h"
#include "xsched/xqueue.h"
#include "xsched/hint.h"
#include "xsched/extra.h"

#endif
