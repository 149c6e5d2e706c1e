/* A server that streams tokens on an exact schedule and logs when it wrote them: the truth about a stream.
 *
 *     gcc -O2 -Wall -Wextra -o truth truth.c          (Linux 5.11 or newer)
 *     truth --port 8000 [--ttft MS] [--itl MS] [--tokens N] [--coalesce N] [--align MS] [--log CSV]
 *           [--chunks BIN]
 *
 * The first token leaves TTFT after the last byte of the request was read, then one every ITL, on an absolute
 * schedule: a late token does not delay the next. ITL 0: as fast as possible, the streams taking turns.
 * --coalesce N: N tokens leave in one write, every N gaps. --align MS: tokens leave at whole multiples of MS
 * of the clock, all streams in lock step. How many tokens is for the request to say. --chunks BIN: for each
 * request also its number in the log, its number of tokens, and when each was written, as 64-bit integers.
 *
 * An event that begins with "data: {" is one token; only the usage, for those who ask for it, is none. A
 * stream whose reader is behind waits until the kernel takes bytes again; the log says how late it was then.
 * Requests are searched, not parsed, and only loopback is listened on: this is an instrument, no server.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
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

enum { LARGEST_REQUEST = 16 << 20, READ_SIZE = 64 << 10, MOST_COALESCED = 64, EVENT_SIZE = 256 };
enum { WRITES_IN_A_ROW = 16 }; /* between two looks at the sockets: what waits there is dated late */

struct conn {
    int fd;
    unsigned number;
    bool streaming, chat, with_usage, close_after;
    char *in; /* what was read and not yet answered, with a zero after it */
    size_t in_length, in_size;
    char *out; /* what the kernel would not take yet */
    size_t out_length;
    struct queue *queue; /* of streams whose next token has its time; NULL if this is none */
    struct conn *before, *after;
    unsigned long request, prompt_words;
    long asked, sent;
    uint64_t recv_start_ns, recv_ns, due_ns, first_ns, last_ns, late_max_ns;
    uint64_t *written_ns; /* when each token was */
    char request_id[128];
};

/* In order of time. First tokens have a queue of their own: within each what comes in later is due later, as
 * all streams share TTFT and ITL, so that adding at the end is all that there is to sorting. */
struct queue {
    struct conn *head, *tail;
} firsts, nexts;

static uint64_t ttft_ns = 100000000, itl_ns = 20000000, align_ns;
static long default_tokens = 128, coalesce = 1;
static FILE *log_file, *chunks_file;
static int epoll_fd, listen_fd;
static unsigned connections, streaming;
static unsigned long requests;
static volatile sig_atomic_t stopped;

static void *checked(void *memory, const char *what)
{
    if (!memory) {
        perror(what);
        exit(1);
    }
    return memory;
}

static FILE *log_to(const char *name)
{
    FILE *file = checked(fopen(name, "we"), name);
    setvbuf(file, NULL, _IOFBF, 1 << 20); /* few writes while tokens are due */
    return file;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void enqueue(struct conn *c)
{
    struct queue *q = c->queue = c->sent ? &nexts : &firsts;
    struct conn *before = q->tail;
    while (before && before->due_ns > c->due_ns) /* it was held up, and has been due for a while */
        before = before->before;
    c->before = before;
    c->after = before ? before->after : q->head;
    *(before ? &before->after : &q->head) = c;
    *(c->after ? &c->after->before : &q->tail) = c;
}

static void dequeue(struct conn *c)
{
    *(c->before ? &c->before->after : &c->queue->head) = c->after;
    *(c->after ? &c->after->before : &c->queue->tail) = c->before;
    c->queue = NULL;
}

static struct conn *earliest(void)
{
    if (!firsts.head || !nexts.head)
        return firsts.head ? firsts.head : nexts.head;
    return firsts.head->due_ns < nexts.head->due_ns ? firsts.head : nexts.head;
}

static uint64_t on_grid(uint64_t ns)
{
    return align_ns ? (ns + align_ns - 1) / align_ns * align_ns : ns;
}

static void log_request(const struct conn *c, const char *status)
{
    if (log_file)
        fprintf(log_file, "%lu,%u,%lu,%lu,%lu,%lu,%lu,%ld,%ld,%s,%lu,%s\n", c->request, c->number,
                c->recv_start_ns, c->recv_ns, c->first_ns, c->last_ns, now_ns(), c->sent, c->asked, status,
                c->late_max_ns, c->request_id);
    if (chunks_file) {
        uint64_t head[] = {c->request, (uint64_t)c->sent};
        fwrite(head, sizeof *head, 2, chunks_file);
        fwrite(c->written_ns, sizeof *c->written_ns, (size_t)c->sent, chunks_file);
    }
}

static void drop(struct conn *c)
{
    if (c->streaming) {
        log_request(c, "abort");
        streaming--;
    }
    if (c->queue)
        dequeue(c);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c->written_ns);
    free(c);
}

static void watch(struct conn *c, uint32_t events, int how)
{
    struct epoll_event event = {.events = events | EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    epoll_ctl(epoll_fd, how, c->fd, &event);
}

/* Hands bytes to the kernel and keeps what it does not take. False if the connection is dead. */
static bool hand_over(struct conn *c, const char *bytes, size_t length)
{
    ssize_t taken = send(c->fd, bytes, length, MSG_NOSIGNAL);
    if (taken < 0 && errno != EAGAIN)
        return false;
    size_t rest = length - (taken < 0 ? 0 : (size_t)taken);
    if ((rest != 0) != (c->out_length != 0))
        watch(c, rest ? EPOLLOUT : 0, EPOLL_CTL_MOD);
    if (rest && bytes != c->out)
        c->out = checked(realloc(c->out, rest), "memory");
    if (rest)
        memmove(c->out, bytes + length - rest, rest);
    c->out_length = rest;
    return true;
}

static void take_request(struct conn *c, uint64_t now);

/* What a connection does next, after bytes were handed over. It may be dropped by this. */
static void go_on(struct conn *c, bool alive)
{
    if (!alive)
        drop(c);
    else if (c->out_length)
        return; /* the kernel says when it has room */
    else if (c->streaming && c->sent < c->asked)
        enqueue(c);
    else {
        if (c->streaming)
            log_request(c, "ok");
        streaming -= c->streaming;
        c->streaming = false;
        if (c->close_after)
            drop(c);
        else if (c->in_length) /* it was sent before its turn */
            take_request(c, c->recv_start_ns = now_ns());
    }
}

/* One event in an HTTP chunk of its own. */
static size_t add_event(char *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static size_t add_event(char *to, const char *format, ...)
{
    char data[EVENT_SIZE];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(data, sizeof data, format, values);
    va_end(values);
    return (size_t)sprintf(to, "%x\r\ndata: %s\n\n\r\n", length + 8, data);
}

/* All tokens are alike, but for the last: each kind is made once. */
static size_t add_token(char *to, bool chat, bool last)
{
    static char made[2][2][EVENT_SIZE + 32];
    static size_t length[2][2];
    if (!length[chat][last])
        length[chat][last] = add_event(
            made[chat][last],
            "{\"id\":\"cmpl-1\",\"object\":\"%s\",\"created\":1,\"model\":\"truth\","
            "\"choices\":[{\"index\":0,%s,\"finish_reason\":%s}]}",
            chat ? "chat.completion.chunk" : "text_completion",
            chat ? "\"delta\":{\"content\":\" token\"}" : "\"text\":\" token\"",
            last ? "\"length\"" : "null");
    memcpy(to, made[chat][last], length[chat][last]);
    return length[chat][last];
}

static size_t add_end(char *to, const struct conn *c)
{
    size_t length = 0;
    if (c->with_usage)
        length = add_event(to, "{\"id\":\"cmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":%lu,"
                               "\"completion_tokens\":%ld,\"total_tokens\":%lu}}",
                           c->prompt_words, c->sent, c->prompt_words + (unsigned long)c->sent);
    length += add_event(to + length, "[DONE]");
    return length + (size_t)sprintf(to + length, "0\r\n\r\n");
}

static void write_tokens(struct conn *c)
{
    static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";
    static char bytes[sizeof HEAD + (MOST_COALESCED + 3) * (EVENT_SIZE + 32)];
    bool first = c->sent == 0;
    long count = c->asked - c->sent < coalesce ? c->asked - c->sent : coalesce;
    size_t length = 0;
    if (first) /* not sooner: when many requests come at once, writes between them date the last late */
        length = (size_t)sprintf(bytes, "%s", HEAD);
    for (long i = 0; i < count; i++)
        length += add_token(bytes + length, c->chat, ++c->sent == c->asked);
    if (c->sent == c->asked)
        length += add_end(bytes + length, c);
    dequeue(c);
    uint64_t now = c->last_ns = now_ns(); /* the truth: just before the write */
    if (first)
        c->first_ns = now;
    for (long i = 1; chunks_file && i <= count; i++)
        c->written_ns[c->sent - i] = now;
    if (now - c->due_ns > c->late_max_ns)
        c->late_max_ns = now - c->due_ns;
    c->due_ns = itl_ns ? on_grid(c->due_ns + (uint64_t)count * itl_ns) : now;
    go_on(c, hand_over(c, bytes, length));
}

/* The number after a key of the body, wherever it stands; 0 if there is none. */
static long number_after(const char *body, const char *key)
{
    const char *found = strstr(body, key);
    return found ? strtol(found + strlen(key) + strspn(found + strlen(key), ": "), NULL, 10) : 0;
}

/* Copies a header's value, empty if there is none, without what would break a row of the log. */
static const char *header(const char *head, const char *name, char *value, size_t size)
{
    const char *found = strcasestr(head, name);
    found = found ? found + strlen(name) + strspn(found + strlen(name), " \t") : "";
    snprintf(value, size, "%.*s", (int)strcspn(found, "\r\n,\""), found);
    return value;
}

static void start_stream(struct conn *c, const char *head, const char *body, uint64_t now)
{
    const char *usage = strstr(body, "\"include_usage\"");
    c->chat = strstr(head, "/chat/") != NULL;
    c->with_usage = usage && !strncmp(usage + 15 + strspn(usage + 15, ": "), "true", 4);
    c->asked = number_after(body, "\"max_completion_tokens\"");
    if (c->asked <= 0)
        c->asked = number_after(body, "\"max_tokens\"");
    if (c->asked <= 0)
        c->asked = default_tokens;
    c->prompt_words = 1; /* right if the prompt has all the spaces of the body, else roughly */
    for (const char *space = body; (space = strchr(space, ' ')); space++)
        c->prompt_words++;
    header(head, "\r\nx-request-id:", c->request_id, sizeof c->request_id);
    c->request = ++requests;
    c->sent = 0;
    c->recv_ns = now;
    c->first_ns = c->last_ns = c->late_max_ns = 0;
    c->due_ns = on_grid(now + ttft_ns);
    if (chunks_file)
        c->written_ns = checked(realloc(c->written_ns, (size_t)c->asked * sizeof *c->written_ns), "memory");
    c->streaming = true;
    streaming++;
}

static bool answer(struct conn *c, const char *status, const char *body)
{
    char text[512];
    int length = sprintf(text, "HTTP/1.1 %s\r\nContent-Type: application/json\r\n"
                               "Content-Length: %zu\r\n\r\n%s", status, strlen(body), body);
    return hand_over(c, text, (size_t)length);
}

static bool dispatch(struct conn *c, const char *head, const char *body, uint64_t now)
{
    if (!strncmp(head, "POST /v1/chat/completions ", 26) || !strncmp(head, "POST /v1/completions ", 21)) {
        start_stream(c, head, body, now);
        return true;
    }
    if (!strncmp(head, "GET /v1/models ", 15))
        return answer(c, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"truth\"}]}");
    if (!strncmp(head, "GET /health ", 12))
        return answer(c, "200 OK", "{}");
    return answer(c, "404 Not Found", "{\"error\":{\"message\":\"no such path\"}}");
}

/* Answers the first request of what was read, if all of it is there. */
static void take_request(struct conn *c, uint64_t now)
{
    char value[32], *end = strstr(c->in, "\r\n\r\n");
    if (!end)
        return;
    end[2] = 0; /* ends the head as a string; its last line stays whole */
    size_t body_length = strtoul(header(c->in, "\r\ncontent-length:", value, sizeof value), NULL, 10);
    size_t length = (size_t)(end + 4 - c->in) + body_length;
    bool readable = !*header(c->in, "\r\ntransfer-encoding:", value, sizeof value);
    c->close_after = !readable || !strcasecmp(header(c->in, "\r\nconnection:", value, sizeof value), "close");
    if (readable && length > c->in_length) {
        end[2] = '\r';
        return;
    }
    if (!readable)
        length = c->in_length;
    char after = c->in[length];
    c->in[length] = 0;
    bool alive = readable ? dispatch(c, c->in, end + 4, now) : answer(c, "411 Length Required", "{}");
    c->in[length] = after;
    c->in_length -= length;
    memmove(c->in, c->in + length, c->in_length + 1);
    go_on(c, alive);
}

static void read_more(struct conn *c)
{
    if (c->in_length + READ_SIZE >= c->in_size)
        c->in = checked(realloc(c->in, c->in_size = 2 * c->in_length + READ_SIZE + 1), "memory");
    ssize_t got = recv(c->fd, c->in + c->in_length, READ_SIZE, 0);
    uint64_t now = now_ns();
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0 || c->in_length > LARGEST_REQUEST) {
        drop(c);
        return;
    }
    if (!c->in_length && !c->streaming)
        c->recv_start_ns = now;
    c->in_length += (size_t)got;
    c->in[c->in_length] = 0;
    if (!c->streaming && !c->out_length)
        take_request(c, now);
}

static void accept_all(void)
{
    int fd, on = 1;
    while ((fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct conn *c = checked(calloc(1, sizeof *c), "memory");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        c->fd = fd;
        c->number = ++connections;
        watch(c, 0, EPOLL_CTL_ADD);
    }
}

static void handle(const struct epoll_event *event)
{
    struct conn *c = event->data.ptr;
    if (!c)
        accept_all();
    else if (event->events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP))
        drop(c);
    else if (event->events & EPOLLOUT)
        go_on(c, hand_over(c, c->out, c->out_length));
    else
        read_more(c);
}

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

static void set_up(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sigaction stop = {.sa_handler = on_signal};
    struct epoll_event event = {.events = EPOLLIN};
    struct rlimit files;
    sigset_t signals;
    int on = 1;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1); /* ns: wake when a token is due, not when it suits the kernel */
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL); /* they come while waiting, so that none is overlooked */
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (bind(listen_fd, (struct sockaddr *)&address, sizeof address) || listen(listen_fd, 4096) ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listen_fd, &event))
        checked(NULL, "truth: cannot listen");
}

static void serve(void)
{
    struct epoll_event events[256];
    sigset_t none;
    sigemptyset(&none);
    while (!stopped) {
        struct conn *c = earliest();
        uint64_t now = now_ns(), wait = c && c->due_ns > now ? c->due_ns - now : 0;
        struct timespec patience = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        if (!streaming)
            fflush(NULL); /* both logs are whole whenever nothing is going on */
        int count = epoll_pwait2(epoll_fd, events, 256, c ? &patience : NULL, &none);
        for (int i = 0; i < count; i++)
            handle(&events[i]);
        for (int i = 0; i < WRITES_IN_A_ROW && (c = earliest()) && c->due_ns <= now_ns(); i++)
            write_tokens(c);
    }
}

int main(int argc, char **argv)
{
    static const struct option FLAGS[] = {
        {"port", 1, NULL, 'p'},     {"ttft", 1, NULL, 't'},  {"itl", 1, NULL, 'i'}, {"tokens", 1, NULL, 'n'},
        {"coalesce", 1, NULL, 'c'}, {"align", 1, NULL, 'a'}, {"log", 1, NULL, 'l'}, {"chunks", 1, NULL, 'k'},
        {NULL, 0, NULL, 0},
    };
    int flag, port = 8000;
    while ((flag = getopt_long(argc, argv, "", FLAGS, NULL)) != -1)
        switch (flag) {
        case 'p': port = atoi(optarg); break;
        case 't': ttft_ns = (uint64_t)(atof(optarg) * 1e6); break;
        case 'i': itl_ns = (uint64_t)(atof(optarg) * 1e6); break;
        case 'n': default_tokens = atol(optarg); break;
        case 'c': coalesce = atol(optarg); break;
        case 'a': align_ns = (uint64_t)(atof(optarg) * 1e6); break;
        case 'l': log_file = log_to(optarg); break;
        case 'k': chunks_file = log_to(optarg); break;
        default: return 2;
        }
    if (coalesce < 1 || coalesce > MOST_COALESCED || default_tokens < 1 || optind < argc) {
        fprintf(stderr, "truth: --coalesce is 1 to %d, --tokens at least 1\n", MOST_COALESCED);
        return 2;
    }
    if (log_file)
        fputs("req,conn,recv_start_ns,recv_ns,first_ns,last_ns,done_ns,sent,asked,status,late_max_ns,"
              "x_request_id\n", log_file);
    set_up(port);
    serve();
    while (earliest()) /* what is still in flight ends here */
        drop(earliest());
    return fflush(NULL) ? 1 : 0;
}
