/* Posts a batch with FLUSHes and ATOMIC WRITEs among other requests to a driver that writes down what it gets. */
#include "../native.c"
#include "../post.c"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
	struct ibv_qp_ex ex;
	void *room[8]; /* of a library that knows more than the headers */
} q;
static int full; /* room in the queue */

int rdmacore_has_qp_ex(void) { return 1; }
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return qp == &q.ex.qp_base ? &q.ex : NULL; }
struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) { return c ? NULL : NULL; }
int ibv_dealloc_pd(struct ibv_pd *pd) { return pd != NULL; }
struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *p, struct ibv_comp_channel *ch, int v) { return c && n && p && ch && v ? NULL : NULL; }
int ibv_destroy_cq(struct ibv_cq *cq) { return cq != NULL; }
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a) { return pd && a ? NULL : NULL; }
int ibv_destroy_qp(struct ibv_qp *qp) { return qp != NULL; }

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	printf("post");
	for (; wr; wr = wr->next) {
		if (full-- == 0) {
			printf(" full\n");
			*bad = wr;
			return ENOMEM;
		}
		printf(" %d:%d/%d", (int)wr->wr_id, wr->opcode, wr->num_sge ? (int)wr->sg_list->length : 0);
		if (wr->send_flags & IBV_SEND_INLINE)
			printf("'%.*s'", (int)wr->sg_list->length, (char *)(uintptr_t)wr->sg_list->addr);
	}
	printf("\n");
	return qp != &q.ex.qp_base;
}

static void start(struct ibv_qp_ex *ex) { printf("start%s", ex == &q.ex ? "" : "?"); }

static int complete(struct ibv_qp_ex *ex)
{
	if (full <= 0) {
		printf(" full\n");
		return ENOMEM;
	}
	printf("\n");
	return ex != &q.ex;
}

static void atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *value)
{
	printf(" %d:atomic/%x rkey %x at %d '%.8s'", (int)ex->wr_id, ex->wr_flags, rkey, (int)addr, (const char *)value);
	full--;
}

static void flush(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, size_t len, uint8_t type, uint8_t level)
{
	printf(" %d:flush/%x rkey %x at %d len %d type %d level %d", (int)ex->wr_id, ex->wr_flags, rkey, (int)addr, (int)len, type, level);
	full--;
}

int main(int argc, char **argv)
{
	static struct ibv_context context;
	rdmacore_send in[] = {
		{.id = 1, .op = CORE_WRITE, .nsge = 1},
		{.id = 2, .op = CORE_SEND, .inlined = 1, .inline_len = 3},
		{.id = 3, .op = CORE_ATOMIC_WRITE, .flags = CORE_FENCE, .rkey = 0xa, .remote_addr = 16, .inline_len = 8},
		{.id = 4, .op = CORE_FLUSH, .flags = CORE_SIGNALED, .rkey = 0xb, .remote_addr = 32, .flush_length = 100, .flush_type = 2},
		{.id = 5, .op = CORE_SEND, .inlined = 1, .inline_len = 2},
		{.id = 6, .op = CORE_FLUSH, .rkey = 0xc, .flush_type = 3, .flush_level = 1},
		{.id = 7, .op = CORE_READ, .nsge = 1},
	};
	rdmacore_sge sge[] = {{.length = 11}, {.length = 22}};
	uint8_t data[] = "abcvalue678de";
	int32_t err;
	int n;

	assert(argc == 2);
	full = atoi(argv[1]);
	context.ops.post_send = post;
	q.ex.qp_base.context = &context;
	q.ex.wr_start = start;
	q.ex.wr_complete = complete;
	((void **)(&q.ex.wr_abort + 1))[0] = (void *)atomic_write;
	((void **)(&q.ex.wr_abort + 1))[1] = (void *)flush;
	n = rdmacore_post_send((rdmacore_qp *)&q.ex.qp_base, in, 7, sge, data, &err);
	printf("%d posted, %s\n", n, err ? strerror(err) : "no error");
	return 0;
}
