import ApusClientAPI
import ApusConfiguration
import ApusCore
import ApusHTTP
import ApusTracing

extension HTTPConfiguration {
    /// Reads the keys under `http.`.
    ///
    /// - Parameter clients: the certificate of the client listener, which this listener uses if it has none of its own.
    mutating func read(
        _ reader: inout ConfigurationReader, clients: HTTPCertificateFiles
    ) throws(ApusError) {
        isTokenTakenFromAnywhere =
            try reader.choice("http.tokens_from", of: ["loopback", "anywhere"], default: "loopback") == "anywhere"
        if try reader.choice("http.tls", of: ["on", "off"], default: "off") == "on" {
            let certificate = try reader.path("http.certificate", default: "")
            let key = try reader.path("http.key", default: "")
            guard certificate.isEmpty == key.isEmpty else {
                throw reader.invalid("http.key", "http.certificate and http.key belong together")
            }
            tls = certificate.isEmpty ? clients : .init(certificate: certificate, key: key)
        } else {
            _ = try reader.string("http.certificate", default: "")
            _ = try reader.string("http.key", default: "")
        }
        connectionsMax = try reader.int("http.connections_max", default: connectionsMax, in: 2...65_536)
        webSocketsMax = try reader.int("http.websockets_max", default: webSocketsMax, in: 0...1_000_000)
        requestTimeout = try reader.duration("http.request_timeout", default: requestTimeout)
        headerByteCountMax = try reader.bytes("http.header_bytes_max", default: headerByteCountMax)
        bodyByteCountMax = try reader.bytes("http.body_bytes_max", default: bodyByteCountMax)
        corsOrigins = try reader.string("http.cors_origins", default: "").split(separator: " ").map(String.init)
        hasConsole = try reader.choice("http.console", of: ["on", "off"], default: "on") == "on"
        webSocketPing = try reader.duration("http.websocket_ping", default: webSocketPing)
        webSocketOutboundByteCountMax = try reader.bytes(
            "http.websocket_outbound_bytes_max", default: webSocketOutboundByteCountMax)
        downloads.countMax = try reader.int("http.downloads_max", default: downloads.countMax, in: 1...65_536)
        downloads.accountMax = try reader.int(
            "http.downloads_per_account_max", default: downloads.accountMax, in: 1...65_536)
        downloads.pieceByteCount = try reader.bytes("http.download_piece_bytes", default: downloads.pieceByteCount)
        guard (4 << 10...8 << 20).contains(downloads.pieceByteCount) else {
            throw reader.invalid("http.download_piece_bytes", "4KiB to 8MiB are expected")
        }
        evs.requestsMax = try reader.int("http.evs_requests_max", default: evs.requestsMax, in: 1...256)
        evs.repliesMax = try reader.int("http.evs_replies_max", default: evs.repliesMax, in: 1...1_000_000)
        evs.replyByteCountMax = try reader.bytes("http.evs_reply_bytes_max", default: evs.replyByteCountMax)
    }
}

extension ClientAPIConfiguration {
    /// Reads the keys under `api.`.
    mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        requestsPerConnectionMax = try reader.int(
            "api.requests_per_connection_max", default: requestsPerConnectionMax, in: 1...4096)
        requestTimeout = try reader.duration("api.request_timeout", default: requestTimeout)
        requestTimeoutMax = try reader.duration("api.request_timeout_max", default: requestTimeoutMax)
        requestsPerSecond = try reader.int("api.requests_per_second", default: requestsPerSecond, in: 1...1_000_000)
        requestsPerSecondEach = try reader.int(
            "api.requests_per_second_each", default: requestsPerSecondEach, in: 1...1_000_000)
        eventsMax = try reader.int("api.events_max", default: eventsMax, in: 1...65_536)
        topicsMax = try reader.int("api.topics_max", default: topicsMax, in: 1...10_000_000)
        subscriptionsMax = try reader.int("api.subscriptions_max", default: subscriptionsMax, in: 1...1_000_000)
    }
}

extension TracingConfiguration {
    /// Reads the keys under `tracing.`.
    mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        let text = try reader.string("tracing.endpoint", default: "")
        endpoint = Endpoint(text)
        guard text.isEmpty || endpoint != nil else {
            throw reader.invalid("tracing.endpoint", "http://HOST:PORT is expected, not '\(text)'")
        }
        sampleRatio = try reader.ratio("tracing.sample_ratio", default: sampleRatio)
        queueMax = try reader.int("tracing.queue_max", default: queueMax, in: 16...1_048_576)
    }
}
