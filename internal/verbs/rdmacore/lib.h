/*
 * Included by .c files only: the libraries' headers. Hidden functions of the same names as theirs (lib.c)
 * stand in for the libraries', also where inline functions of the headers call them, and go through pointers, so
 * that the program has no undefined symbol of the libraries and starts where they are not.
 */
#ifndef RDMACORE_LIB_H
#define RDMACORE_LIB_H

#include "core.h"

#ifdef CORE_HEADERS
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <errno.h>

/* What failed, for functions that set errno; some leave it at 0. */
static inline int rdmacore_errno(int fallback)
{
	return errno ? -errno : -fallback;
}

/* Libraries before version 1.11 lack it. */
int rdmacore_has_gid_table(void);
int rdmacore_has_qp_ex(void);

/* A duplicate of a descriptor for Go's poller. Both are one open file, so neither blocks. */
int rdmacore_dup(int fd);

#endif
#endif
