/*
 * A librdmacm.so.1 that resolves addresses to no device, as one was seen to do with an adapter whose GUID was 0. All else goes to the real
 * library, REAL.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>

#define PASSED(X)                                                                                                  \
	X(rdma_create_event_channel) X(rdma_destroy_event_channel) X(rdma_get_devices) X(rdma_free_devices)        \
	X(rdma_create_id) X(rdma_destroy_id) X(rdma_migrate_id) X(rdma_bind_addr) X(rdma_resolve_addr)             \
	X(rdma_resolve_route) X(rdma_listen) X(rdma_connect) X(rdma_establish) X(rdma_accept) X(rdma_reject)       \
	X(rdma_notify) X(rdma_disconnect) X(rdma_ack_cm_event) X(rdma_set_option) X(rdma_init_qp_attr)             \
	X(rdma_join_multicast_ex) X(rdma_leave_multicast) X(rdma_get_src_port) X(rdma_get_dst_port)

#define JUMP(name)                                                  \
	__attribute__((used)) static void *real_##name;             \
	__asm__(".globl " #name "\n.type " #name ", @function\n"    \
		#name ": jmp *real_" #name "(%rip)\n");
PASSED(JUMP)

static int (*get_event)(struct rdma_event_channel *, struct rdma_cm_event **);

__attribute__((constructor)) static void find(void)
{
	void *so = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);

	if (!so)
		abort();
#define FIND(name)                                  \
	if (!(real_##name = dlsym(so, #name)))      \
		abort();
	PASSED(FIND)
	if (!(*(void **)&get_event = dlsym(so, "rdma_get_cm_event")))
		abort();
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	int rc = get_event(channel, event);

	if (rc == 0 && (*event)->event == RDMA_CM_EVENT_ADDR_RESOLVED)
		(*event)->id->verbs = NULL;
	return rc;
}
