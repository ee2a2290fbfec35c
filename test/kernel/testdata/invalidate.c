/*
 * invalidate <address> <port> serves one connection. It tells the peer a memory window, expects that the peer writes into it and
 * invalidates it by a SEND whose first four bytes are a key of the peer's, and invalidates that.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* Soft-RoCE of Linux 6.1 gives programs the flag as the kernel has it, where IBV_WC_WITH_INV is another. */
enum { SIZE = 3000, WINDOW = 4096, KERNEL_WC_WITH_INV = 1 << 2 };

static void must(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void post(struct rdma_cm_id *id, struct ibv_send_wr *wr, const char *what)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	must(ibv_post_send(id->qp, wr, &bad) == 0, what);
	must(rdma_get_send_comp(id, &wc) == 1, what);
	if (wc.status == IBV_WC_SUCCESS)
		return;
	fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(wc.status));
	exit(1);
}

int main(int argc, char **argv)
{
	static char buf[WINDOW + 2 * SIZE] __attribute__((aligned(4096)));
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *ai;
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 32 }, .sq_sig_all = 1 };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
	struct rdma_cm_id *listener, *id;
	struct { uint64_t addr; uint32_t key; } __attribute__((packed)) told;
	char *in = buf + WINDOW, *out = in + SIZE;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_wc wc;
	uint32_t key, peer;

	if (argc != 3)
		return 2;
	must(rdma_getaddrinfo(argv[1], argv[2], &hints, &ai) == 0, "rdma_getaddrinfo");
	must(rdma_create_ep(&listener, ai, NULL, &attr) == 0, "rdma_create_ep");
	must(rdma_listen(listener, 1) == 0, "rdma_listen");
	must(rdma_get_request(listener, &id) == 0, "rdma_get_request");
	mr = ibv_reg_mr(id->pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	must(mr != NULL, "ibv_reg_mr");
	must(rdma_post_recv(id, NULL, in, SIZE, mr) == 0, "rdma_post_recv");
	must(rdma_accept(id, &param) == 0, "rdma_accept");

	mw = ibv_alloc_mw(id->pd, IBV_MW_TYPE_2);
	must(mw != NULL, "ibv_alloc_mw");
	key = ibv_inc_rkey(mw->rkey);
	memset(&wr, 0, sizeof wr);
	wr.opcode = IBV_WR_BIND_MW;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = key;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)buf, WINDOW, IBV_ACCESS_REMOTE_WRITE };
	post(id, &wr, "IBV_WR_BIND_MW");

	told.addr = htobe64((uintptr_t)buf);
	told.key = htonl(key);
	memcpy(out, &told, sizeof told);
	sge = (struct ibv_sge){ (uintptr_t)out, sizeof told, mr->lkey };
	memset(&wr, 0, sizeof wr);
	wr.opcode = IBV_WR_SEND;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	post(id, &wr, "IBV_WR_SEND");

	must(rdma_get_recv_comp(id, &wc) == 1, "rdma_get_recv_comp");
	printf("received %u bytes: %s, %s key\n", wc.byte_len, ibv_wc_status_str(wc.status),
	       wc.wc_flags & (IBV_WC_WITH_INV | KERNEL_WC_WITH_INV) && wc.invalidated_rkey == key ? "the" : "no");
	printf("window: %.5s\n", buf);
	for (int i = 4; i < SIZE; i++)
		must(in[i] == (char)i, "what was sent");
	fflush(stdout);

	memcpy(&peer, in, sizeof peer);
	for (int i = 0; i < SIZE; i++)
		out[i] = (char)(3 * i);
	sge.length = SIZE;
	memset(buf, 0, 5);
	/* For the peer's last write. Soft-RoCE of Linux 6.1 does not flush what is posted when the queue pair has failed. */
	must(rdma_post_recv(id, NULL, in, SIZE, mr) == 0, "rdma_post_recv");
	wr.opcode = IBV_WR_SEND_WITH_INV;
	wr.invalidate_rkey = ntohl(peer);
	post(id, &wr, "IBV_WR_SEND_WITH_INV");

	must(rdma_get_recv_comp(id, &wc) == 1, "rdma_get_recv_comp");
	printf("the end: %s, window: %.5s\n", ibv_wc_status_str(wc.status), buf);
	rdma_disconnect(id);
	return 0;
}
