import ApusClientAPI
import ApusCommands
import ApusConfiguration
import ApusCore
import ApusHTTP
import ApusTracing

extension HTTPConfiguration {
    /// Reads the keys under `http.`.
    ///
    /// - Parameter clients: the certificate of the client listener, which this listener uses if it has none of its own.
    mutating func read(
        _ reader: inout ConfigurationReader, _ path: (String) -> String, clients: HTTPCertificateFiles
    ) throws(ApusError) {
        isTokenTakenFromAnywhere =
            try reader.choice("http.tokens_from", of: ["loopback", "anywhere"], default: "loopback") == "anywhere"
        if try reader.choice("http.tls", of: ["on", "off"], default: "off") == "on" {
            let certificate = try reader.string("http.certificate", default: "")
            let key = try reader.string("http.key", default: "")
            guard certificate.isEmpty == key.isEmpty else {
                throw reader.invalid("http.key", "http.certificate and http.key belong together")
            }
            tls = certificate.isEmpty ? clients : .init(certificate: path(certificate), key: path(key))
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
        webSocketPing = try reader.duration("http.websocket_ping", default: webSocketPing)
        webSocketOutboundByteCountMax = try reader.bytes(
            "http.websocket_outbound_bytes_max", default: webSocketOutboundByteCountMax)
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

extension CommandConfiguration {
    /// Reads the keys under `commands.`.
    mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        openMax = try reader.int("commands.open_max", default: openMax, in: 1...1024)
        openByteCountMax = try reader.bytes("commands.open_bytes_max", default: openByteCountMax)
        // With what has ended it is one record.
        guard (32 << 10...160 << 10).contains(openByteCountMax) else {
            throw reader.invalid("commands.open_bytes_max", "32KiB to 160KiB are expected")
        }
        readsMax = try reader.int("commands.reads_max", default: readsMax, in: 1...64)
        sentMax = try reader.int("commands.sent_max", default: sentMax, in: 1...64)
        ttlMax = try reader.duration("commands.ttl_max", default: ttlMax)
        resendAfter = try reader.duration("commands.resend_after", default: resendAfter)
        answerTime = try reader.duration("commands.answer_time", default: answerTime)
        endedMax = try reader.int("commands.ended_max", default: endedMax, in: 1...64)
        endedTime = try reader.duration("commands.ended_time", default: endedTime)
        guard (.seconds(1) ... .seconds(31_536_000)).contains(ttlMax), resendAfter >= .milliseconds(100),
            (.seconds(1) ... .seconds(31_536_000)).contains(answerTime),
            (.seconds(60) ... .seconds(31_536_000)).contains(endedTime)
        else {
            throw reader.invalid(
                "commands.ttl_max",
                "1s to 8760h is expected, as of answer_time; ended_time: from 1m; resend_after: from 100ms")
        }
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
