/* Connections: private data, refusals, peers that say nothing. */
#include "peer.h"

#include <string.h>
#include <unistd.h>

/* connect: private data both ways, which arrive padded with zeros; the server ends the connection */

static void expect_data(struct rpma_conn_private_data d, const char *text, size_t room)
{
	char want[256] = {0};

	strcpy(want, text);
	check(d.ptr && d.len == room);
	check(!memcmp(d.ptr, want, room));
	say("%s (%d bytes)", (char *)d.ptr, d.len);
}

static void serve_connect(struct side *s)
{
	struct rpma_conn_private_data d;
	static const char text[] = "from the server";

	listen_on(s);
	next_request(s);
	try(rpma_conn_req_get_private_data(s->req, &d));
	expect_data(d, "from the client", 56);
	accept_with(s, text, sizeof text);
	try(rpma_conn_get_private_data(s->conn, &d));
	check(d.len == 56);
	end(s, true);
}

static void dial_connect(struct side *s)
{
	struct rpma_conn_private_data d;
	static const char text[] = "from the client";
	uint32_t qpn;

	connect_with(s, text, sizeof text);
	try(rpma_conn_get_private_data(s->conn, &d));
	expect_data(d, "from the server", 196);
	try(rpma_conn_get_qp_num(s->conn, &qpn));
	check(qpn > 1);
	end(s, false);
}

/* nodata: no private data, which looks the same as zeros */

static void serve_nodata(struct side *s)
{
	struct rpma_conn_private_data d;

	listen_on(s);
	next_request(s);
	try(rpma_conn_req_get_private_data(s->req, &d));
	expect_data(d, "", 56);
	accept_with(s, NULL, 0);
	end(s, false);
}

static void dial_nodata(struct side *s)
{
	struct rpma_conn_private_data d;

	connect_with(s, NULL, 0);
	try(rpma_conn_get_private_data(s->conn, &d));
	expect_data(d, "", 196);
	end(s, true);
}

/* reject: the server refuses a request, and takes the next one */

static void serve_reject(struct side *s)
{
	listen_on(s);
	next_request(s);
	try(rpma_conn_req_delete(&s->req));
	next_request(s);
	accept_with(s, NULL, 0);
	end(s, false);
}

static void dial_rejected(struct side *s)
{
	request(s);
	try(rpma_conn_req_connect(&s->req, NULL, &s->conn));
	expect_event(s, RPMA_CONN_REJECTED);
	try(rpma_conn_delete(&s->conn));
	say("rejected");
}

static void dial_reject(struct side *s)
{
	dial_rejected(s);
	connect_with(s, NULL, 0);
	end(s, true);
}

/* nobody: there is no server */

static void serve_nobody(struct side *s)
{
	(void)s;
	die("nobody serves that");
}

/* silent: a server that takes a connection and does not care about it any more, not even about its end. Clients close without it. */

static void serve_silent(struct side *s)
{
	listen_on(s);
	next_request(s);
	accept_with(s, NULL, 0);
	say("silent");
	for (;;)
		pause();
}

static void dial_silent(struct side *s)
{
	connect_with(s, NULL, 0);
	try(rpma_conn_disconnect(s->conn));
	try(rpma_conn_delete(&s->conn));
	say("left");
}

/* deaf: a server that listens and takes no request */

static void serve_deaf(struct side *s)
{
	listen_on(s);
	for (;;)
		pause();
}

static void dial_deaf(struct side *s)
{
	request(s);
	try(rpma_conn_req_connect(&s->req, NULL, &s->conn));
	sleep(3);
	try(rpma_conn_delete(&s->conn)); /* there is no event in all this time, and no limit to it */
	say("gave up");
}

/* killed: a peer that dies tells the other, by its kernel */

static void serve_killed(struct side *s)
{
	listen_on(s);
	next_request(s);
	accept_with(s, NULL, 0);
	say("ready");
	expect_event(s, RPMA_CONN_CLOSED);
	say("closed");
}

static void dial_killed(struct side *s)
{
	connect_with(s, NULL, 0);
	say("ready");
	expect_event(s, RPMA_CONN_CLOSED);
	say("closed");
}

const struct scenario scenarios_cm[] = {
	{"connect", serve_connect, dial_connect},
	{"nodata", serve_nodata, dial_nodata},
	{"reject", serve_reject, dial_reject},
	{"nobody", serve_nobody, dial_rejected},
	{"silent", serve_silent, dial_silent},
	{"deaf", serve_deaf, dial_deaf},
	{"killed", serve_killed, dial_killed},
	{0},
};
