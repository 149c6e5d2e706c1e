/* The least that a client can do which dates every token: its figures are the floor of the machine.
 *
 *     gcc -O2 -Wall -Wextra -o client client.c        (Linux 5.11 or newer)
 *     client -P PORT -n REQUESTS -t TOKENS [-c STREAMS] [-r RATE | -a ARRIVALS.txt] [-g] -o ROWS.csv
 *
 * -r: an open loop at a constant rate. -a: requests leave at these times, in ns from the start, one a line.
 * Neither: a closed loop of STREAMS. In the open loops -c is how many connections are opened before the
 * start; more are opened as they are needed, one ahead. -g: also write the time of every token.
 *
 * One thread, epoll, loopback. A token is an event that begins with "data: {", dated when the read that
 * brought it came back; nothing else is parsed. Anything that is not as expected ends it with exit code 1: a
 * floor over some of the requests would be none. Times are CLOCK_MONOTONIC in ns; stdout is a JSON object.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { READ_SIZE = 64 << 10, LEAD_NS = 20000000 };

static const char EVENT[] = "data: {", END[] = "\r\n0\r\n\r\n", OK[] = "HTTP/1.1 200";

struct conn {
    int fd;
    long request;                  /* that is under way */
    size_t status_at, event_at, end_at; /* how much of OK, EVENT and END has been seen, across reads */
    struct conn *next_idle;
};

struct request {
    uint64_t due_ns, send_ns, first_ns, last_ns, *token_ns;
    long tokens;
};

static int port, epoll_fd;
static long count, tokens = 128, streams = 1, sent, done;
static bool closed_loop, keep_tokens;
static struct request *requests;
static struct conn *idle;

static void fail(const char *what)
{
    fprintf(stderr, "client: %s: %s\n", what, errno ? strerror(errno) : "not as expected");
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void put_back(struct conn *c)
{
    c->next_idle = idle;
    idle = c;
}

static void open_connection(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct conn *c = calloc(1, sizeof *c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!c || (c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 ||
        connect(c->fd, (struct sockaddr *)&address, sizeof address) ||
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event))
        fail("connect");
    put_back(c);
}

static void send_next(void)
{
    char body[256], text[512];
    struct request *request = &requests[sent];
    struct conn *c;
    if (!idle)
        open_connection();
    c = idle;
    idle = c->next_idle;
    c->request = sent;
    c->status_at = c->event_at = c->end_at = 0;
    int body_length = sprintf(body,
                              "{\"model\":\"truth\",\"messages\":[{\"role\":\"user\",\"content\":"
                              "\"a b c d e f g h i j k l m n o p\"}],\"stream\":true,"
                              "\"max_completion_tokens\":%ld}",
                              tokens);
    int length = sprintf(text,
                         "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                         "Content-Type: application/json\r\nX-Request-ID: f-%ld\r\n"
                         "Content-Length: %d\r\n\r\n%s",
                         port, sent, body_length, body);
    request->send_ns = now_ns();
    if (closed_loop)
        request->due_ns = request->send_ns;
    if (send(c->fd, text, (size_t)length, MSG_NOSIGNAL) != length) /* so little always fits */
        fail("send");
    sent++;
}

static void date_token(struct request *request, uint64_t now)
{
    if (request->tokens == tokens)
        fail("more tokens than asked for");
    if (!request->tokens)
        request->first_ns = now;
    request->last_ns = now;
    if (keep_tokens)
        request->token_ns[request->tokens] = now;
    request->tokens++;
}

/* One byte further in a word: how much of it has been seen now. */
static size_t matched(const char *word, size_t at, char byte)
{
    return word[at] == byte ? at + 1 : word[0] == byte ? 1 : 0;
}

static void read_answer(struct conn *c)
{
    static char bytes[READ_SIZE];
    ssize_t got = recv(c->fd, bytes, sizeof bytes, 0);
    uint64_t now = now_ns();
    if (got <= 0)
        fail("the connection ended");
    for (ssize_t i = 0; i < got; i++) {
        if (c->status_at < sizeof OK - 1 && bytes[i] != OK[c->status_at++])
            fail("status");
        c->event_at = matched(EVENT, c->event_at, bytes[i]);
        c->end_at = matched(END, c->end_at, bytes[i]);
        if (c->event_at == sizeof EVENT - 1) {
            date_token(&requests[c->request], now);
            c->event_at = 0;
        }
    }
    if (c->end_at < sizeof END - 1)
        return;
    if (requests[c->request].tokens != tokens)
        fail("fewer tokens than asked for");
    put_back(c);
    done++;
}

/* Send what is due now, and say how long until the next is; nothing to wait for is NULL. */
static const struct timespec *send_due(void)
{
    static struct timespec wait;
    while (sent < count && (closed_loop ? idle != NULL : requests[sent].due_ns <= now_ns()))
        send_next();
    if (sent == count || closed_loop)
        return NULL;
    if (!idle)
        open_connection();
    uint64_t now = now_ns(), ns = requests[sent].due_ns > now ? requests[sent].due_ns - now : 0;
    wait = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    return &wait;
}

static void run(void)
{
    struct epoll_event events[256];
    while (done < count) {
        int ready = epoll_pwait2(epoll_fd, events, 256, send_due(), NULL);
        for (int i = 0; i < ready; i++)
            read_answer(events[i].data.ptr);
    }
}

static void plan(double rate, const char *arrivals)
{
    FILE *file = arrivals ? fopen(arrivals, "r") : NULL;
    if (arrivals && !file)
        fail(arrivals);
    closed_loop = !file && rate <= 0;
    for (long i = 0; i < count; i++) {
        struct request *request = &requests[i];
        if (file ? fscanf(file, "%lu", &request->due_ns) != 1 : false)
            fail("a time of arrival is missing");
        if (!file && !closed_loop)
            request->due_ns = (uint64_t)((double)i / rate * 1e9);
        if (keep_tokens && !(request->token_ns = calloc((size_t)tokens, sizeof *request->token_ns)))
            fail("memory");
    }
    if (file)
        fclose(file);
}

static void write_rows(const char *name)
{
    FILE *file = fopen(name, "w");
    if (!file)
        fail(name);
    fprintf(file, "id,due_ns,send_ns,first_ns,last_ns,n%s\n", keep_tokens ? ",token_ns" : "");
    for (long i = 0; i < count; i++) {
        const struct request *r = &requests[i];
        fprintf(file, "f-%ld,%lu,%lu,%lu,%lu,%ld", i, r->due_ns, r->send_ns, r->first_ns, r->last_ns,
                r->tokens);
        for (long k = 0; keep_tokens && k < r->tokens; k++)
            fprintf(file, "%c%lu", k ? ' ' : ',', r->token_ns[k]);
        fputc('\n', file);
    }
    if (fclose(file))
        fail(name);
}

static double cpu_s(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
    const char *out = NULL, *arrivals = NULL;
    double rate = 0;
    for (int flag; (flag = getopt(argc, argv, "P:c:n:t:r:a:o:g")) != -1;)
        switch (flag) {
        case 'P': port = atoi(optarg); break;
        case 'c': streams = atol(optarg); break;
        case 'n': count = atol(optarg); break;
        case 't': tokens = atol(optarg); break;
        case 'r': rate = atof(optarg); break;
        case 'a': arrivals = optarg; break;
        case 'o': out = optarg; break;
        case 'g': keep_tokens = true; break;
        default: return 2;
        }
    if (!port || !out || count < 1 || tokens < 1 || streams < 1) {
        fputs("client: -P PORT, -n REQUESTS and -o CSV are needed\n", stderr);
        return 2;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1); /* ns: wake when a request is due */
    if (!(requests = calloc((size_t)count, sizeof *requests)))
        fail("memory");
    plan(rate, arrivals);
    epoll_fd = epoll_create1(0);
    for (long i = 0; i < streams; i++)
        open_connection();
    uint64_t start = now_ns() + LEAD_NS;
    for (long i = 0; i < count && !closed_loop; i++)
        requests[i].due_ns += start;
    run();
    printf("{\"requests\":%ld,\"tokens\":%ld,\"seconds\":%.3f,\"cpu\":%.6f}\n", count, count * tokens,
           (double)(now_ns() - start) / 1e9, cpu_s());
    write_rows(out);
    return 0;
}
