// One ICE agent of libnice in a process of its own; speaks with ice_pair.py as ice_agent.py does.
//
//     nice_agent --relay ADDRESS:PORT --user USER --password PASSWORD [--controlling] [--relay-only] [--messages N]
//
// Writes its description as a line of JSON, reads the other's, connects, exchanges messages, and writes what it saw.
#include <agent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECONDS = 25, TEN = 10, SIZE_MAX_OF_MESSAGE = 1200 };

static gboolean is_controlling, is_relay_only;
static char *relay, *user, *password;
static int message_count = 100;
static GOptionEntry options[] = {
    {"controlling", 0, 0, G_OPTION_ARG_NONE, &is_controlling, "", NULL},
    {"relay-only", 0, 0, G_OPTION_ARG_NONE, &is_relay_only, "", NULL},
    {"relay", 0, 0, G_OPTION_ARG_STRING, &relay, "", "ADDRESS:PORT"},
    {"user", 0, 0, G_OPTION_ARG_STRING, &user, "", "USER"},
    {"password", 0, 0, G_OPTION_ARG_STRING, &password, "", "PASSWORD"},
    {"messages", 0, 0, G_OPTION_ARG_INT, &message_count, "", "N"},
    {NULL}};

static GMainLoop *loop;
static NiceAgent *agent;
static guint stream;
static gboolean is_ready, is_over;
static int status = 1;
/// Which numbers came back, and how many.
static guint8 *back;
static int back_count;

static gboolean fail(gpointer words) {
    printf("{\"error\": \"%s\"}\n", (char *)words);
    g_main_loop_quit(loop);
    return G_SOURCE_REMOVE;
}

/// A message whose length and bytes follow from its number.
static int payload(int number, char *bytes) {
    int count = 4 + 1 + number * 11 % 1150;
    for (int index = 0; index < count; index++) bytes[index] = (char)(number * 31 + index * 7);
    guint32 big = GUINT32_TO_BE((guint32)number);
    memcpy(bytes, &big, 4);
    return count;
}

static const char *type_name(const NiceCandidate *candidate) {
    switch (candidate->type) {
    case NICE_CANDIDATE_TYPE_HOST: return "host";
    case NICE_CANDIDATE_TYPE_RELAYED: return "relay";
    case NICE_CANDIDATE_TYPE_SERVER_REFLEXIVE: return "srflx";
    default: return "prflx";
    }
}

static gboolean quit(gpointer unused) {
    g_main_loop_quit(loop);
    return G_SOURCE_REMOVE;
}

static void finish(int count) {
    if (is_over) return;
    is_over = TRUE;
    NiceCandidate *local, *remote;
    if (!nice_agent_get_selected_pair(agent, stream, 1, &local, &remote)) {
        fail("no pair");
        return;
    }
    char here[NICE_ADDRESS_STRING_LEN], there[NICE_ADDRESS_STRING_LEN];
    nice_address_to_string(&local->addr, here);
    nice_address_to_string(&remote->addr, there);
    printf(
        "{\"local\": \"%s\", \"remote\": \"%s\", \"local_address\": \"%s:%u\", \"remote_address\": \"%s:%u\", "
        "\"messages\": %d}\n",
        type_name(local), type_name(remote), here, nice_address_get_port(&local->addr), there,
        nice_address_get_port(&remote->addr), count);
    status = 0;
    g_timeout_add(200, quit, NULL);
}

/// What has not come back is sent again, ten messages at a time.
static gboolean send_some(gpointer unused) {
    char bytes[SIZE_MAX_OF_MESSAGE];
    if (back_count == message_count) {
        for (int time = 0; time < 3; time++) nice_agent_send(agent, stream, 1, 3, "end");
        finish(back_count);
        return G_SOURCE_REMOVE;
    }
    int sent = 0;
    for (int number = 0; number < message_count && sent < TEN; number++) {
        if (back[number]) continue;
        nice_agent_send(agent, stream, 1, (guint)payload(number, bytes), bytes);
        sent++;
    }
    return G_SOURCE_CONTINUE;
}

static void received(NiceAgent *from, guint of, guint component, guint count, char *bytes, gpointer unused) {
    static int echoed;
    char expected[SIZE_MAX_OF_MESSAGE];
    if (count == 3 && memcmp(bytes, "end", 3) == 0) {
        if (!is_controlling) finish(echoed < message_count ? echoed : message_count);
        return;
    }
    if (!is_controlling) {
        echoed++;
        nice_agent_send(agent, stream, 1, count, bytes);
        return;
    }
    guint32 big;
    if (count < 4) return;
    memcpy(&big, bytes, 4);
    guint32 number = GUINT32_FROM_BE(big);
    if (number >= (guint32)message_count || back[number]) return;
    if ((guint)payload((int)number, expected) != count || memcmp(bytes, expected, count) != 0) return;
    back[number] = 1;
    back_count++;
}

static void changed(NiceAgent *from, guint of, guint component, guint state, gpointer unused) {
    if (state == NICE_COMPONENT_STATE_FAILED) fail("the agent failed");
    if (state != NICE_COMPONENT_STATE_READY || is_ready) return;
    is_ready = TRUE;
    if (is_controlling) g_timeout_add(50, send_some, NULL);
}

/// The value of a name in a line of JSON whose strings have no escapes.
static char *value(const char *line, const char *pattern) {
    g_autoptr(GRegex) regex = g_regex_new(pattern, 0, 0, NULL);
    g_autoptr(GMatchInfo) match = NULL;
    return g_regex_match(regex, line, 0, &match) ? g_match_info_fetch(match, 1) : NULL;
}

static gboolean described(GIOChannel *input, GIOCondition condition, gpointer unused) {
    char *line = NULL;
    if (g_io_channel_read_line(input, &line, NULL, NULL, NULL) != G_IO_STATUS_NORMAL) return G_SOURCE_REMOVE;
    char *ufrag = value(line, "\"user\": \"([^\"]*)\""), *pwd = value(line, "\"password\": \"([^\"]*)\"");
    if (!ufrag || !pwd || !nice_agent_set_remote_credentials(agent, stream, ufrag, pwd)) {
        fail("the other agent's description cannot be read");
        return G_SOURCE_REMOVE;
    }
    GSList *candidates = NULL;
    g_autoptr(GRegex) regex = g_regex_new("\"([^\"]* typ [^\"]*)\"", 0, 0, NULL);
    g_autoptr(GMatchInfo) match = NULL;
    for (g_regex_match(regex, line, 0, &match); g_match_info_matches(match); g_match_info_next(match, NULL)) {
        char *text = g_strconcat("a=candidate:", g_match_info_fetch(match, 1), NULL);
        NiceCandidate *candidate = nice_agent_parse_remote_candidate_sdp(agent, stream, text);
        if (candidate) candidates = g_slist_append(candidates, candidate);
    }
    nice_agent_set_remote_candidates(agent, stream, 1, candidates);
    return G_SOURCE_REMOVE;
}

static void gathered(NiceAgent *from, guint of, gpointer unused) {
    char *ufrag, *pwd;
    nice_agent_get_local_credentials(agent, stream, &ufrag, &pwd);
    printf("{\"user\": \"%s\", \"password\": \"%s\", \"candidates\": [", ufrag, pwd);
    const char *comma = "";
    for (GSList *each = nice_agent_get_local_candidates(agent, stream, 1); each; each = each->next) {
        char *text = nice_agent_generate_local_candidate_sdp(agent, each->data);
        printf("%s\"%s\"", comma, strchr(text, ':') + 1);
        comma = ", ";
    }
    printf("]}\n");
    g_io_add_watch(g_io_channel_unix_new(0), G_IO_IN, described, NULL);
}

int main(int count, char **words) {
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    g_option_context_add_main_entries(context, options, NULL);
    char *port = NULL;
    if (!g_option_context_parse(context, &count, &words, NULL) || !relay || !user || !password ||
        !(port = strrchr(relay, ':')))
        return 64;
    *port++ = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    back = calloc((size_t)message_count, 1);
    loop = g_main_loop_new(NULL, FALSE);
    agent = nice_agent_new(NULL, NICE_COMPATIBILITY_RFC5245);
    g_object_set(
        agent, "controlling-mode", is_controlling, "upnp", FALSE, "ice-tcp", FALSE, "force-relay", is_relay_only,
        "stun-server", relay, "stun-server-port", (guint)atoi(port), NULL);
    stream = nice_agent_add_stream(agent, 1);
    nice_agent_set_stream_name(agent, stream, "application");
    nice_agent_set_relay_info(agent, stream, 1, relay, (guint)atoi(port), user, password, NICE_RELAY_TYPE_TURN_UDP);
    g_signal_connect(agent, "candidate-gathering-done", G_CALLBACK(gathered), NULL);
    g_signal_connect(agent, "component-state-changed", G_CALLBACK(changed), NULL);
    nice_agent_attach_recv(agent, stream, 1, NULL, received, NULL);
    g_timeout_add_seconds(SECONDS, fail, "no end in time");
    if (!nice_agent_gather_candidates(agent, stream)) fail("no candidates");
    else g_main_loop_run(loop);
    return status;
}
