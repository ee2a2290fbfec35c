/* FLUSH and ATOMIC WRITE, for .c files. */
#ifndef RDMACORE_NATIVE_H
#define RDMACORE_NATIVE_H

#include "lib.h"

#ifdef CORE_HEADERS

/* Whether the kernel's device does both. */
int rdmacore_native_caps(const struct ibv_device_attr_ex *);
/* Whether the library and its driver do too. */
int rdmacore_native_try(struct ibv_context *);

/* A queue pair for them; everything else is posted to it as ever. */
struct ibv_qp *rdmacore_native_qp(struct ibv_pd *, struct ibv_qp_init_attr *);

/* Posts n of them, all or none; data is where the values of ATOMIC WRITEs are, and is moved behind them. Returns 0 or an errno. */
int rdmacore_native_post(struct ibv_qp *, const rdmacore_send *, int n, uint8_t **data);

static inline int rdmacore_is_native(const rdmacore_send *s)
{
	return s->op == CORE_FLUSH || s->op == CORE_ATOMIC_WRITE;
}

static inline unsigned int rdmacore_send_flags(const rdmacore_send *s)
{
	return (s->flags & CORE_SIGNALED ? IBV_SEND_SIGNALED : 0) | (s->flags & CORE_SOLICITED ? IBV_SEND_SOLICITED : 0) |
	       (s->flags & CORE_FENCE ? IBV_SEND_FENCE : 0);
}

#endif
#endif
