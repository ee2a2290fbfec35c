#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "lib.h"

int rdmacore_headers(void)
{
#ifdef CORE_HEADERS
	return 1;
#else
	return 0;
#endif
}

#ifdef CORE_HEADERS

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

/*
 * Functions of the libraries: version, whether old libraries may lack it, result, name, parameters, arguments.
 * libibverbs 1.0 symbols have another ABI under the same names, so the version is asked for.
 */
#define V11 "IBVERBS_1.1"
#define VERBS(X)                                                                                       \
	X(V11, 1, struct ibv_device **, ibv_get_device_list, (int *a), (a))                            \
	X(V11, 1, const char *, ibv_get_device_name, (struct ibv_device *a), (a))                      \
	X(V11, 1, struct ibv_context *, ibv_open_device, (struct ibv_device *a), (a))                  \
	X(V11, 1, int, ibv_close_device, (struct ibv_context *a), (a))                                 \
	X(V11, 1, int, ibv_get_async_event, (struct ibv_context *a, struct ibv_async_event *b), (a, b)) \
	X(V11, 1, int, ibv_query_device, (struct ibv_context *a, struct ibv_device_attr *b), (a, b))   \
	X(V11, 1, int, ibv_query_port, (struct ibv_context *a, uint8_t b, struct _compat_ibv_port_attr *c), (a, b, c)) \
	X(V11, 1, int, ibv_query_gid, (struct ibv_context *a, uint8_t b, int c, union ibv_gid *d), (a, b, c, d)) \
	X(NULL, 0, ssize_t, _ibv_query_gid_table, (struct ibv_context *a, struct ibv_gid_entry *b, size_t c, uint32_t d, size_t e), (a, b, c, d, e)) \
	X(V11, 1, struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *a), (a))                         \
	X(V11, 1, int, ibv_dealloc_pd, (struct ibv_pd *a), (a))                                        \
	X(V11, 1, struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *a, void *b, size_t c, int d), (a, b, c, d)) \
	X(V11, 1, int, ibv_dereg_mr, (struct ibv_mr *a), (a))                                          \
	X(NULL, 1, struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *a), (a))   \
	X(NULL, 1, int, ibv_destroy_comp_channel, (struct ibv_comp_channel *a), (a))                   \
	X(V11, 1, struct ibv_cq *, ibv_create_cq, (struct ibv_context *a, int b, void *c, struct ibv_comp_channel *d, int e), (a, b, c, d, e)) \
	X(V11, 1, int, ibv_destroy_cq, (struct ibv_cq *a), (a))                                        \
	X(V11, 1, int, ibv_get_cq_event, (struct ibv_comp_channel *a, struct ibv_cq **b, void **c), (a, b, c)) \
	X(V11, 1, struct ibv_srq *, ibv_create_srq, (struct ibv_pd *a, struct ibv_srq_init_attr *b), (a, b)) \
	X(V11, 1, int, ibv_modify_srq, (struct ibv_srq *a, struct ibv_srq_attr *b, int c), (a, b, c))  \
	X(V11, 1, int, ibv_destroy_srq, (struct ibv_srq *a), (a))                                      \
	X(V11, 1, struct ibv_qp *, ibv_create_qp, (struct ibv_pd *a, struct ibv_qp_init_attr *b), (a, b)) \
	X(NULL, 0, struct ibv_qp_ex *, ibv_qp_to_qp_ex, (struct ibv_qp *a), (a))                       \
	X(V11, 1, int, ibv_modify_qp, (struct ibv_qp *a, struct ibv_qp_attr *b, int c), (a, b, c))     \
	X(V11, 1, int, ibv_destroy_qp, (struct ibv_qp *a), (a))                                        \
	X(V11, 1, struct ibv_ah *, ibv_create_ah, (struct ibv_pd *a, struct ibv_ah_attr *b), (a, b))   \
	X(V11, 1, int, ibv_destroy_ah, (struct ibv_ah *a), (a))                                        \
	X(V11, 1, int, ibv_attach_mcast, (struct ibv_qp *a, const union ibv_gid *b, uint16_t c), (a, b, c)) \
	X(V11, 1, int, ibv_detach_mcast, (struct ibv_qp *a, const union ibv_gid *b, uint16_t c), (a, b, c))
#define VERBS_VOID(X)                                                                 \
	X(V11, 1, ibv_free_device_list, (struct ibv_device * *a), (a))                \
	X(V11, 1, ibv_ack_async_event, (struct ibv_async_event * a), (a))             \
	X(V11, 1, ibv_ack_cq_events, (struct ibv_cq * a, unsigned int b), (a, b))

#define CMA(X)                                                                                       \
	X(NULL, 1, struct rdma_event_channel *, rdma_create_event_channel, (void), ())               \
	X(NULL, 1, struct ibv_context **, rdma_get_devices, (int *a), (a))                           \
	X(NULL, 1, int, rdma_create_id, (struct rdma_event_channel *a, struct rdma_cm_id **b, void *c, enum rdma_port_space d), (a, b, c, d)) \
	X(NULL, 1, int, rdma_destroy_id, (struct rdma_cm_id *a), (a))                                \
	X(NULL, 1, int, rdma_migrate_id, (struct rdma_cm_id *a, struct rdma_event_channel *b), (a, b)) \
	X(NULL, 1, int, rdma_bind_addr, (struct rdma_cm_id *a, struct sockaddr *b), (a, b))          \
	X(NULL, 1, int, rdma_resolve_addr, (struct rdma_cm_id *a, struct sockaddr *b, struct sockaddr *c, int d), (a, b, c, d)) \
	X(NULL, 1, int, rdma_resolve_route, (struct rdma_cm_id *a, int b), (a, b))                   \
	X(NULL, 1, int, rdma_listen, (struct rdma_cm_id *a, int b), (a, b))                          \
	X(NULL, 1, int, rdma_connect, (struct rdma_cm_id *a, struct rdma_conn_param *b), (a, b))     \
	X(NULL, 1, int, rdma_establish, (struct rdma_cm_id *a), (a))                                 \
	X(NULL, 1, int, rdma_accept, (struct rdma_cm_id *a, struct rdma_conn_param *b), (a, b))      \
	X(NULL, 1, int, rdma_reject, (struct rdma_cm_id *a, const void *b, uint8_t c), (a, b, c))    \
	X(NULL, 1, int, rdma_notify, (struct rdma_cm_id *a, enum ibv_event_type b), (a, b))          \
	X(NULL, 1, int, rdma_disconnect, (struct rdma_cm_id *a), (a))                                \
	X(NULL, 1, int, rdma_get_cm_event, (struct rdma_event_channel *a, struct rdma_cm_event **b), (a, b)) \
	X(NULL, 1, int, rdma_ack_cm_event, (struct rdma_cm_event *a), (a))                           \
	X(NULL, 1, int, rdma_set_option, (struct rdma_cm_id *a, int b, int c, void *d, size_t e), (a, b, c, d, e)) \
	X(NULL, 1, int, rdma_init_qp_attr, (struct rdma_cm_id *a, struct ibv_qp_attr *b, int *c), (a, b, c)) \
	X(NULL, 1, int, rdma_join_multicast_ex, (struct rdma_cm_id *a, struct rdma_cm_join_mc_attr_ex *b, void *c), (a, b, c)) \
	X(NULL, 1, int, rdma_leave_multicast, (struct rdma_cm_id *a, struct sockaddr *b), (a, b))    \
	X(NULL, 1, __be16, rdma_get_src_port, (struct rdma_cm_id *a), (a))                           \
	X(NULL, 1, __be16, rdma_get_dst_port, (struct rdma_cm_id *a), (a))
#define CMA_VOID(X)                                                                            \
	X(NULL, 1, rdma_destroy_event_channel, (struct rdma_event_channel * a), (a))           \
	X(NULL, 1, rdma_free_devices, (struct ibv_context * *a), (a))

#define POINTER(version, must, result, name, params, args) result(*name) params;
#define POINTER_VOID(version, must, name, params, args) void(*name) params;
static struct {
	VERBS(POINTER)
	VERBS_VOID(POINTER_VOID)
	CMA(POINTER)
	CMA_VOID(POINTER_VOID)
} lib;

#define HIDDEN __attribute__((visibility("hidden")))
#define STUB(version, must, result, name, params, args) \
	HIDDEN result name params { return lib.name args; }
#define STUB_VOID(version, must, name, params, args) \
	HIDDEN void name params { lib.name args; }

VERBS(STUB)
VERBS_VOID(STUB_VOID)
CMA(STUB)
CMA_VOID(STUB_VOID)

static void *find(void *so, const char *name, const char *version)
{
#ifdef __GLIBC__
	void *p = version ? dlvsym(so, name, version) : NULL;

	if (p)
		return p;
#endif
	return dlsym(so, name);
}

#define LOAD_VOID(version, must, name, params, args)                    \
	*(void **)&lib.name = find(so, #name, version);                 \
	if (must && !*(void **)&lib.name) {                             \
		snprintf(text, room, "%s", #name);                      \
		return CORE_NO_SYMBOL;                                  \
	}
#define LOAD(version, must, result, name, params, args) LOAD_VOID(version, must, name, params, args)

int rdmacore_has_qp_ex(void) { return lib.ibv_qp_to_qp_ex != NULL; }

int rdmacore_has_gid_table(void) { return lib._ibv_query_gid_table != NULL; }

int rdmacore_load(char *text, int room)
{
	void *so = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!so) {
		snprintf(text, room, "%s", dlerror());
		return CORE_NO_LIBIBVERBS;
	}
	VERBS(LOAD)
	VERBS_VOID(LOAD_VOID)
	so = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!so) {
		snprintf(text, room, "%s", dlerror());
		return CORE_NO_LIBRDMACM;
	}
	CMA(LOAD)
	CMA_VOID(LOAD_VOID)
	return 0;
}

int rdmacore_dup(int fd)
{
	int flags = fcntl(fd, F_GETFL), copy;

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return rdmacore_errno(EBADF);
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return copy < 0 ? rdmacore_errno(EMFILE) : copy;
}

#else /* no headers */

int rdmacore_load(char *text, int room)
{
	if (room > 0)
		text[0] = 0;
	return CORE_NO_HEADERS;
}

#endif
