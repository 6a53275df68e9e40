package import ApusCore
import CApusTLS

/// The certificate and the settings of the TLS and DTLS doors, shared by all planes: TLS 1.3, and 1.2 for clients
/// that have no newer one (RFC 8489 §6.2.3); DTLS 1.2, the newest that libssl has.
///
/// Sendable: libssl's contexts may be used by many threads once they are made.
package final class DoorSecurity: @unchecked Sendable {  // SAFETY: two `let`s; libssl locks what it shares.
    let streams: OpaquePointer
    let datagrams: OpaquePointer

    /// Reads PEM files: the server's certificate, then those that signed it; and its key.
    ///
    /// - Throws: 10022 where one cannot be used.
    package init(certificateFile: String, keyFile: String) throws(ApusError) {
        var reason = [CChar](repeating: 0, count: 256)
        let streams = apus_tls_server_context(certificateFile, keyFile, &reason, reason.count)
        guard let streams, apus_tls_context_allow_12(streams) == 1,
            let datagrams = apus_dtls_server_context(certificateFile, keyFile, &reason, reason.count)
        else {
            apus_tls_context_free(streams)
            let words = String(decoding: reason.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
            throw ApusError(
                .configurationInvalid,
                "the relay's certificate \(certificateFile) with the key \(keyFile) cannot be used: \(words)")
        }
        self.streams = streams
        self.datagrams = datagrams
    }

    deinit {
        apus_tls_context_free(streams)
        apus_dtls_context_free(datagrams)
    }
}
