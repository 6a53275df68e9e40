#include "private.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/// A day: the time for which a client trusts a server by its ticket, before the server must present its certificate
/// again.
enum { AUTHENTICATION_SECONDS_MAX = 24 * 3600 };

struct apus_tls_resumption {
    /// A copy: a connection's own session may be marked as not resumable.
    SSL_SESSION *session;
    int64_t authenticated_at;
};

apus_tls_resumption *apus_tls_resumption_new(void) { return calloc(1, sizeof(apus_tls_resumption)); }

void apus_tls_resumption_free(apus_tls_resumption *resumption) {
    if (!resumption) return;
    SSL_SESSION_free(resumption->session);
    free(resumption);
}

static int64_t now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec;
}

/// A ticket arrived. The newest one is kept.
static int session_arrived(SSL *ssl, SSL_SESSION *session) {
    apus_tls *tls = BIO_get_data(SSL_get_rbio(ssl));
    apus_tls_resumption *resumption = tls->resumption;
    if (!resumption) return 0;
    SSL_SESSION *copy = SSL_SESSION_dup(session);
    if (!copy) return 0;
    SSL_SESSION_free(resumption->session);
    resumption->session = copy;
    resumption->authenticated_at = SSL_session_reused(ssl) ? tls->authenticated_at : now_seconds();
    return 0;
}

void apus_tls_context_keep_tickets(apus_tls_context *context) {
    SSL_CTX_set_session_cache_mode(context->settings, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context->settings, session_arrived);
}

/// Checks a certificate for this host (RFC 6125 section 6.4) or this address. The certificate's subject counts only if
/// it has no alternative names.
static int is_for(X509 *certificate, const char *host, const char *address) {
    if (!certificate) return 0;
    unsigned flags = X509_get_ext_by_NID(certificate, NID_subject_alt_name, -1) >= 0 ? X509_CHECK_FLAG_NEVER_CHECK_SUBJECT : 0;
    if (host && X509_check_host(certificate, host, 0, flags, NULL) == 1) return 1;
    return address && X509_check_ip_asc(certificate, address, flags) == 1;
}

apus_tls *apus_tls_new_connecting(
    apus_tls_context *context, const char *host, const char *address, apus_tls_resumption *resumption) {
    apus_tls *tls = apus_tls_new(context, -1);
    if (!tls) return NULL;
    tls->is_direct = 0;
    tls->resumption = resumption;
    SSL_set_connect_state(tls->ssl);
    if (host && SSL_set_tlsext_host_name(tls->ssl, host) != 1) {
        apus_tls_free(tls);
        return NULL;
    }
    if (!resumption || !resumption->session) return tls;
    // RFC 8446 section 4.6.1: only if the certificate that was presented then is valid for this server too.
    int is_offered = now_seconds() - resumption->authenticated_at < AUTHENTICATION_SECONDS_MAX
        && is_for(SSL_SESSION_get0_peer(resumption->session), host, address);
    SSL_SESSION *copy = is_offered ? SSL_SESSION_dup(resumption->session) : NULL;
    if (copy && SSL_set_session(tls->ssl, copy) == 1) tls->authenticated_at = resumption->authenticated_at;
    SSL_SESSION_free(copy);
    ERR_clear_error();
    return tls;
}

int apus_tls_is_for(const apus_tls *tls, const char *host, const char *address) {
    return SSL_get_verify_result(tls->ssl) == X509_V_OK && is_for(SSL_get0_peer_certificate(tls->ssl), host, address);
}

int apus_tls_is_resumed(const apus_tls *tls) { return SSL_session_reused(tls->ssl); }
