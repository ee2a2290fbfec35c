/* Without the headers of the libraries: the same functions, none of which is called, since rdmacore_load fails. */
#include "core.h"

#ifndef CORE_HEADERS

#include <errno.h>

static const rdmacore_ref none = {NULL, -ENOSYS, -1};
static const rdmacore_reg no_reg = {NULL, 0, 0, -ENOSYS};

int rdmacore_list(rdmacore_listed *a, int b) { return -ENOSYS; }
rdmacore_ref rdmacore_open(const char *a) { return none; }
int rdmacore_close(rdmacore_ctx *a) { return -ENOSYS; }
int rdmacore_vacate(rdmacore_ctx *a) { return -ENOSYS; }
int rdmacore_query(rdmacore_ctx *a, rdmacore_attr *b) { return -ENOSYS; }
int rdmacore_query_port(rdmacore_ctx *a, int b, rdmacore_port *c) { return -ENOSYS; }
int rdmacore_gids(rdmacore_ctx *a, rdmacore_gid *b, int c) { return -ENOSYS; }
int rdmacore_async_event(rdmacore_ctx *a, rdmacore_async *b) { return -ENOSYS; }
int rdmacore_async_kind(int a) { return CORE_ASYNC_NONE; }
rdmacore_ref rdmacore_alloc_pd(rdmacore_ctx *a) { return none; }
int rdmacore_dealloc_pd(rdmacore_pd *a) { return -ENOSYS; }
rdmacore_reg rdmacore_reg_mr(rdmacore_pd *a, void *b, size_t c, uint32_t d, int e) { return no_reg; }
int rdmacore_dereg_mr(rdmacore_mr *a) { return -ENOSYS; }
int rdmacore_advise_mr(rdmacore_pd *a, int b, uint64_t c, uint64_t d, uint32_t e) { return -ENOSYS; }
rdmacore_ref rdmacore_create_chan(rdmacore_ctx *a) { return none; }
int rdmacore_destroy_chan(rdmacore_chan *a) { return -ENOSYS; }
int rdmacore_cq_events(rdmacore_chan *a, uint64_t *b, int c) { return -ENOSYS; }
rdmacore_ref rdmacore_create_cq(rdmacore_ctx *a, int b, uint64_t c, rdmacore_chan *d, int e) { return none; }
int rdmacore_destroy_cq(rdmacore_cq *a) { return -ENOSYS; }
int rdmacore_arm(rdmacore_cq *a) { return -ENOSYS; }
int rdmacore_poll(rdmacore_cq *a, rdmacore_wc *b, int c, int d, int e, int f) { return -ENOSYS; }
rdmacore_qp *rdmacore_create_qp(rdmacore_pd *a, rdmacore_qp_init *b) { return NULL; }
int rdmacore_destroy_qp(rdmacore_qp *a) { return -ENOSYS; }
int rdmacore_qp_error(rdmacore_qp *a) { return -ENOSYS; }
int rdmacore_post_send(rdmacore_qp *a, const rdmacore_send *b, int c, rdmacore_sge *d, uint8_t *e, int32_t *f) { return -ENOSYS; }
int rdmacore_post_recv(rdmacore_qp *a, const rdmacore_recv *b, int c, rdmacore_sge *d, int32_t *e) { return -ENOSYS; }
int rdmacore_post_srq(rdmacore_srq *a, const rdmacore_recv *b, int c, rdmacore_sge *d, int32_t *e) { return -ENOSYS; }
rdmacore_ref rdmacore_create_srq(rdmacore_pd *a, int b, int c, uint64_t d) { return none; }
int rdmacore_arm_srq(rdmacore_srq *a, int b) { return -ENOSYS; }
int rdmacore_destroy_srq(rdmacore_srq *a) { return -ENOSYS; }
rdmacore_ref rdmacore_create_ah(rdmacore_pd *a, const rdmacore_ah_attr *b) { return none; }
int rdmacore_destroy_ah(rdmacore_ah *a) { return -ENOSYS; }
rdmacore_ref rdmacore_create_ec(void) { return none; }
void rdmacore_destroy_ec(rdmacore_ec *a) {}
void rdmacore_forget(void) {}
int rdmacore_next_event(rdmacore_ec *a, rdmacore_event *b) { return -ENOSYS; }
rdmacore_ref rdmacore_create_id(rdmacore_ec *a, int b, uint64_t c) { return none; }
int rdmacore_destroy_id(rdmacore_id *a) { return -ENOSYS; }
int rdmacore_move_id(rdmacore_id *a, rdmacore_ec *b, uint64_t c) { return -ENOSYS; }
int rdmacore_set_tos(rdmacore_id *a, int b) { return -ENOSYS; }
int rdmacore_set_afonly(rdmacore_id *a, int b) { return -ENOSYS; }
int rdmacore_bind(rdmacore_id *a, const rdmacore_addr *b) { return -ENOSYS; }
int rdmacore_resolve_addr(rdmacore_id *a, const rdmacore_addr *b, const rdmacore_addr *c, int d) { return -ENOSYS; }
int rdmacore_resolve_route(rdmacore_id *a, int b) { return -ENOSYS; }
int rdmacore_listen(rdmacore_id *a, int b) { return -ENOSYS; }
rdmacore_ctx *rdmacore_context(rdmacore_id *a) { return NULL; }
int rdmacore_info(rdmacore_id *a, rdmacore_id_info *b) { return -ENOSYS; }
int rdmacore_connect(rdmacore_id *a, const rdmacore_param *b) { return -ENOSYS; }
int rdmacore_accept(rdmacore_id *a, const rdmacore_param *b) { return -ENOSYS; }
int rdmacore_establish(rdmacore_id *a) { return -ENOSYS; }
int rdmacore_reject(rdmacore_id *a, const uint8_t *b, int c) { return -ENOSYS; }
int rdmacore_disconnect(rdmacore_id *a) { return -ENOSYS; }
int rdmacore_comm_est(rdmacore_id *a) { return -ENOSYS; }
int rdmacore_lookup(rdmacore_id *a, const uint8_t *b, int c) { return -ENOSYS; }
int rdmacore_reply(rdmacore_id *a, uint32_t b, const uint8_t *c, int d) { return -ENOSYS; }
int rdmacore_join(rdmacore_id *a, const rdmacore_addr *b, int c, uint64_t d) { return -ENOSYS; }
int rdmacore_leave(rdmacore_id *a, const rdmacore_addr *b) { return -ENOSYS; }
int rdmacore_attach(rdmacore_qp *a, const uint8_t *b, int c) { return -ENOSYS; }
int rdmacore_detach(rdmacore_qp *a, const uint8_t *b, int c) { return -ENOSYS; }
int rdmacore_qp_datagrams(rdmacore_id *a, rdmacore_qp *b) { return -ENOSYS; }
int rdmacore_qp_init_state(rdmacore_id *a, rdmacore_qp *b, int c) { return -ENOSYS; }
int rdmacore_qp_init_alone(rdmacore_qp *a, int b, int c) { return -ENOSYS; }
int rdmacore_qp_connect(rdmacore_id *a, rdmacore_qp *b, rdmacore_connect_attr *c) { return -ENOSYS; }

#endif
