/* Publisher and subscriber of NATS with its C client, as benchmarks.data_plane runs them.
 *
 *     nats_c_client publish|subscribe HOST:PORT TOPICS PAYLOAD_BYTES EVENTS UNDER_WAY STILL_S
 *
 * It says and hears the same lines of JSON as benchmarks/data_plane_clients.py, which describes
 * them; each is small and has one number that counts, so that scanf reads them.
 */
#include <nats/nats.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 500, REPORT_EVERY = 1000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
/* What was told last; -1 before. */
static long long told = -1;
static int told_all = 0;

/* Of the subscriber: what has come, and how much of it before anything is measured. */
static atomic_llong arrived = 0;
static atomic_int warm = 0;
static long long before_measuring = 0;
static long long events_planned = 0, report_every = 1, next_report = 1;
/* As far as it has been told, and when that was. */
static atomic_llong measured = 0;
static double measured_s = 0.0;

static void check(natsStatus status, const char *what)
{
    if (status == NATS_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, natsStatus_GetText(status));
    exit(1);
}

static double clock_s(clockid_t id)
{
    struct timespec at;
    clock_gettime(id, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static long long least(long long one, long long other)
{
    return one < other ? one : other;
}

static long long most(long long one, long long other)
{
    return one > other ? one : other;
}

/* A thread: everything told, until no more will be. */
static void *listen_to_stdin(void *unused)
{
    char line[256];
    long long number;
    (void)unused;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "{\"delivered\": %lld", &number) != 1 &&
            sscanf(line, "{\"sent\": %lld", &number) != 1)
            continue;
        pthread_mutex_lock(&lock);
        told = number;
        pthread_cond_broadcast(&moved);
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_lock(&lock);
    told_all = 1;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Wait until this much has been told, or no more will be; whether it has been told. */
static int wait_for(long long number)
{
    int enough;
    pthread_mutex_lock(&lock);
    while (told < number && !told_all)
        pthread_cond_wait(&moved, &lock);
    enough = told >= number;
    pthread_mutex_unlock(&lock);
    return enough;
}

static int is_told(long long number)
{
    int enough;
    pthread_mutex_lock(&lock);
    enough = told >= number;
    pthread_mutex_unlock(&lock);
    return enough;
}

static int is_over(void)
{
    int over;
    pthread_mutex_lock(&lock);
    over = told_all;
    pthread_mutex_unlock(&lock);
    return over;
}

/* ---- the publisher ------------------------------------------------------------------------- */

static void publish(natsConnection *connection, int topics, int payload_bytes, long long under_way)
{
    const long long batch_most = most(1, least(BATCH, under_way / 4));
    char (*names)[32] = calloc((size_t)topics, sizeof *names);
    char *payload = calloc((size_t)most(payload_bytes, 1), 1);
    long long sent = 0;
    int topic = 0;
    double before_s;

    for (int i = 0; i < topics; i++) {
        snprintf(names[i], sizeof names[i], "bench.%d", i);
        check(natsConnection_Publish(connection, names[i], "", 0), "publish");
    }
    check(natsConnection_Flush(connection), "flush");
    printf("{\"ready\": true}\n");
    fflush(stdout);
    wait_for(0);
    before_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    while (sent < events_planned && !is_over()) {
        const long long batch = least(batch_most, events_planned - sent);
        const long long needed = sent + batch - under_way;
        if (!is_told(needed)) {
            /* What is in its buffer would be waited for in vain. */
            check(natsConnection_Flush(connection), "flush");
            if (!wait_for(needed))
                break;
        }
        for (long long i = 0; i < batch; i++) {
            check(natsConnection_Publish(connection, names[topic], payload, payload_bytes),
                  "publish");
            if (++topic == topics)
                topic = 0;
        }
        sent += batch;
    }
    check(natsConnection_Flush(connection), "flush");
    printf("{\"sent\": %lld, \"cpu_s\": %.6f}\n", sent,
           clock_s(CLOCK_PROCESS_CPUTIME_ID) - before_s);
    fflush(stdout);
    wait_for(events_planned + 1);
    free(payload);
    free(names);
}

/* ---- the subscriber ------------------------------------------------------------------------ */

static void on_message(natsConnection *connection, natsSubscription *subscription, natsMsg *msg,
                       void *closure)
{
    /* One thread calls this: it need not add in one step with others. */
    const long long count = atomic_load_explicit(&arrived, memory_order_relaxed) + 1;
    (void)connection, (void)subscription, (void)closure;
    natsMsg_Destroy(msg);
    if (atomic_load_explicit(&warm, memory_order_acquire) &&
        count - before_measuring >= next_report) {
        const long long heard = count - before_measuring;
        measured_s = clock_s(CLOCK_REALTIME);
        atomic_store(&measured, heard);
        next_report = heard + report_every;
        if (heard < events_planned)
            next_report = least(next_report, events_planned);
        printf("{\"delivered\": %lld}\n", heard);
        fflush(stdout);
    }
    atomic_store_explicit(&arrived, count, memory_order_release);
}

/* Until so much has come in all, or nothing more does. */
static void hear(long long count, double still_s)
{
    long long seen = -1;
    double since_s = 0.0;
    while (atomic_load(&arrived) < count) {
        const long long now = atomic_load(&arrived);
        const double now_s = clock_s(CLOCK_MONOTONIC);
        if (now != seen) {
            seen = now;
            since_s = now_s;
        } else if (now_s - since_s > still_s)
            break;
        usleep(1000);
    }
}

static void subscribe(natsConnection *connection, int topics, long long under_way, double still_s)
{
    natsSubscription *subscription = NULL;
    double before_s;

    check(natsConnection_Subscribe(&subscription, connection, topics == 1 ? "bench.0" : "bench.*",
                                   on_message, NULL),
          "subscribe");
    check(natsSubscription_SetPendingLimits(subscription, -1, -1), "limits");
    check(natsConnection_Flush(connection), "flush");
    printf("{\"ready\": true}\n");
    fflush(stdout);
    hear(topics, still_s);
    before_measuring = atomic_load(&arrived);
    report_every = most(1, least(REPORT_EVERY, under_way / 4));
    next_report = least(report_every, events_planned);
    atomic_store_explicit(&warm, 1, memory_order_release);
    before_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    printf("{\"warm\": true}\n");
    fflush(stdout);
    if (wait_for(0))
        hear(before_measuring + told, still_s);
    printf("{\"heard\": %lld, \"measured\": %lld, \"measured_s\": %.6f, \"cpu_s\": %.6f}\n",
           atomic_load(&arrived) - before_measuring, atomic_load(&measured), measured_s,
           clock_s(CLOCK_PROCESS_CPUTIME_ID) - before_s);
    fflush(stdout);
    natsSubscription_Destroy(subscription);
}

int main(int argc, char **argv)
{
    natsConnection *connection = NULL;
    pthread_t listening;
    char url[128];
    int topics;
    long long under_way;

    if (argc != 8) {
        fprintf(stderr, "usage: %s ROLE HOST:PORT TOPICS BYTES EVENTS UNDER_WAY S\n", argv[0]);
        return 2;
    }
    topics = atoi(argv[3]);
    events_planned = atoll(argv[5]);
    under_way = atoll(argv[6]);
    snprintf(url, sizeof url, "nats://%s", argv[2]);
    check(natsConnection_ConnectTo(&connection, url), "connect");
    pthread_create(&listening, NULL, listen_to_stdin, NULL);
    if (strcmp(argv[1], "publish") == 0)
        publish(connection, topics, atoi(argv[4]), under_way);
    else
        subscribe(connection, topics, under_way, atof(argv[7]));
    natsConnection_Destroy(connection);
    return 0;
}
