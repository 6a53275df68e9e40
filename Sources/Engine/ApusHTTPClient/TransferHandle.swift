import ApusCore
import CApusCurl

/// libcurl's part of one transfer: its handle, its options and the functions that it calls.
///
/// Concurrency model: confined to the client's thread.
final class TransferHandle {
    /// libcurl's buffer of one transfer.
    private static let bufferByteCount = 64 << 10

    let easy: OpaquePointer
    let transfer: HTTPTransfer
    /// True after bytes were received; the thread resets it.
    var hasReceived = false
    private let settings: HTTPClient.Settings
    private let reason: UnsafeMutablePointer<CChar>
    private var headers: UnsafeMutablePointer<curl_slist>?
    /// The libcurl's view of ``HTTPClient/Settings/mayConnect``; nil if there is none.
    private var guardian: UnsafeMutablePointer<apus_curl_guard>?
    /// The last address that the client may not connect to.
    private var refusedAddress: [UInt8]?
    private var sentCount = 0
    private let start = MonotonicTime.now()

    /// - Parameter hasConnection: True if a request of the client has been answered.
    /// - Throws: 10018 if there is no memory, 21022 if libcurl does not take an option.
    init(_ transfer: HTTPTransfer, _ settings: HTTPClient.Settings, hasConnection: Bool) throws(ApusError) {
        guard let easy = curl_easy_init() else { throw ApusError(.internalFailure, "no memory") }
        (self.easy, self.transfer, self.settings) = (easy, transfer, settings)
        reason = .allocate(capacity: Int(CURL_ERROR_SIZE))
        reason.initialize(repeating: 0, count: Int(CURL_ERROR_SIZE))
        try setConnection()
        try setVersion(hasConnection: hasConnection)
        try setSecurity()
        try setRequest()
        try setReceivers()
    }

    deinit {
        curl_easy_cleanup(easy)
        curl_slist_free_all(headers)
        reason.deallocate()
        guardian?.deallocate()
    }

    // MARK: Options

    private func check(_ code: CURLcode) throws(ApusError) {
        guard code == CURLE_OK else { throw error(code) }
    }

    private func set(_ option: CURLoption, _ value: Int) throws(ApusError) {
        try check(apus_curl_set_number(easy, option, value))
    }

    private func set(_ option: CURLoption, _ value: String?) throws(ApusError) {
        try check(apus_curl_set_text(easy, option, value))
    }

    private func setConnection() throws(ApusError) {
        try set(CURLOPT_PROTOCOLS_STR, "http,https")
        try set(CURLOPT_PROXY, "")
        try set(CURLOPT_NOSIGNAL, 1)
        try set(CURLOPT_BUFFERSIZE, Self.bufferByteCount)
        // A look-up of a name that was cancelled ends in its own thread. Otherwise this thread would wait for it.
        try set(CURLOPT_QUICK_EXIT, 1)
        if !settings.keepsConnections { try set(CURLOPT_FORBID_REUSE, 1) }
        try check(apus_curl_close_on_exec(easy))
        if settings.mayConnect != nil { try setGuard() }
        let connectTimeout = min(settings.connectTimeout, transfer.request.connectTimeout ?? settings.connectTimeout)
        try set(CURLOPT_CONNECTTIMEOUT_MS, Self.milliseconds(connectTimeout))
        try set(CURLOPT_TIMEOUT_MS, transfer.request.timeout.map(Self.milliseconds) ?? 0)
    }

    private func setGuard() throws(ApusError) {
        let judge: apus_curl_judge = { bytes, count, context in
            let address = [UInt8](UnsafeBufferPointer(start: bytes, count: count))
            return TransferHandle.from(context)?.mayConnect(to: address) ?? false
        }
        // SAFETY: as for the receivers; the memory is released with the handle.
        let guardian = UnsafeMutablePointer<apus_curl_guard>.allocate(capacity: 1)
        guardian.initialize(to: apus_curl_guard(allows: judge, context: Unmanaged.passUnretained(self).toOpaque()))
        self.guardian = guardian
        try check(apus_curl_set_guard(easy, guardian))
    }

    private func setVersion(hasConnection: Bool) throws(ApusError) {
        let version: Int
        switch settings.version {
        case .negotiated: version = Int(CURL_HTTP_VERSION_2TLS)
        case .http2 where transfer.request.url.hasPrefix("https:"): version = Int(CURL_HTTP_VERSION_2TLS)
        // With `PRIOR_KNOWLEDGE`, libcurl before 8.0 fails over a connection that it has.
        case .http2 where hasConnection: version = Int(CURL_HTTP_VERSION_2_0)
        case .http2: version = Int(CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE)
        }
        try set(CURLOPT_HTTP_VERSION, version)
        if settings.version == .http2, hasConnection { try check(apus_curl_open_nothing(easy)) }
    }

    private func setSecurity() throws(ApusError) {
        try set(CURLOPT_SSLVERSION, Int(CURL_SSLVERSION_TLSv1_2))
        if let file = settings.authorityFile {
            try set(CURLOPT_CAINFO, file)
            // Without the system's.
            try set(CURLOPT_CAPATH, nil)
            try set(CURLOPT_CA_CACHE_TIMEOUT, 0)
        }
        guard let file = settings.certificateFile else { return }
        try set(CURLOPT_SSLCERT, file)
        try set(CURLOPT_SSLKEY, settings.keyFile)
        // libssl would ask for a password at the terminal.
        try set(CURLOPT_KEYPASSWD, "")
    }

    private func setRequest() throws(ApusError) {
        let request = transfer.request
        try set(CURLOPT_URL, request.url)
        try set(CURLOPT_PATH_AS_IS, 1)
        try set(CURLOPT_DISALLOW_USERNAME_IN_URL, 1)
        if request.method == "HEAD" { try set(CURLOPT_NOBODY, 1) }
        if !request.body.isEmpty || ["POST", "PUT", "PATCH"].contains(request.method) {
            // A body that is read by a function cannot be sent again. libcurl repeats a request whose connection was
            // closed before the answer only if it can.
            try set(CURLOPT_UPLOAD, 1)
            try check(apus_curl_set_size(easy, CURLOPT_INFILESIZE_LARGE, Int64(request.body.count)))
        }
        try set(CURLOPT_CUSTOMREQUEST, request.method)
        // No `Expect: 100-continue`, which libcurl adds to long requests.
        let lines = request.headers.map { $0.value.isEmpty ? "\($0.name);" : "\($0.name): \($0.value)" } + ["Expect:"]
        for line in lines {
            guard let list = curl_slist_append(headers, line) else { throw ApusError(.internalFailure, "no memory") }
            headers = list
        }
        try check(apus_curl_set_headers(easy, headers))
    }

    private func setReceivers() throws(ApusError) {
        // SAFETY: libcurl calls the functions below only before the handle is released, which this object outlives.
        let context = Unmanaged.passUnretained(self).toOpaque()
        try check(apus_curl_set_reason(easy, reason))
        let lineReceiver: apus_curl_receiver = { bytes, size, count, context in
            let line = UnsafeRawBufferPointer(start: bytes, count: size * count)
            return TransferHandle.from(context)?.received(line: line) ?? 0
        }
        try check(apus_curl_set_header_receiver(easy, lineReceiver, context))
        let bodyReceiver: apus_curl_receiver = { bytes, size, count, context in
            let body = UnsafeRawBufferPointer(start: bytes, count: size * count)
            return TransferHandle.from(context)?.received(body: body) ?? 0
        }
        try check(apus_curl_set_body_receiver(easy, bodyReceiver, context))
        let bodySender: apus_curl_sender = { bytes, size, count, context in
            let buffer = UnsafeMutableRawBufferPointer(start: bytes, count: size * count)
            return TransferHandle.from(context)?.send(into: buffer) ?? 0
        }
        try check(apus_curl_set_body_sender(easy, bodySender, context))
    }

    /// - Parameter context: what ``setReceivers()`` passed.
    private static func from(_ context: UnsafeMutableRawPointer?) -> TransferHandle? {
        context.map { Unmanaged<TransferHandle>.fromOpaque($0).takeUnretainedValue() }
    }

    /// Rounded up, so that libcurl never ends a transfer before its time. At least 1: 0 is no limit.
    private static func milliseconds(_ time: Duration) -> Int {
        let (whole, rest) = time.nanoseconds.quotientAndRemainder(dividingBy: 1_000_000)
        return max(Int(whole + rest.signum()), 1)
    }

    // MARK: Called by libcurl

    private func mayConnect(to address: [UInt8]) -> Bool {
        let isAllowed = settings.mayConnect?(address) ?? true
        if !isAllowed { refusedAddress = address }
        return isAllowed
    }

    private func received(line: UnsafeRawBufferPointer) -> Int {
        hasReceived = true
        let step = transfer.received(line: line, byteCountMax: settings.headByteCountMax)
        return step == .goOn ? line.count : 0
    }

    private func received(body: UnsafeRawBufferPointer) -> Int {
        hasReceived = true
        switch transfer.received(body: body, bufferByteCountMax: settings.bufferByteCountMax) {
        case .goOn: return body.count
        case .pause: return apus_curl_pause
        // Any other number than that of the bytes.
        case .fail: return body.count == 0 ? 1 : 0
        }
    }

    private func send(into buffer: UnsafeMutableRawBufferPointer) -> Int {
        let part = transfer.request.body.dropFirst(sentCount).prefix(buffer.count)
        buffer.copyBytes(from: part)
        sentCount += part.count
        return part.count
    }

    // MARK: The end

    /// Ends the transfer with libcurl's result.
    func end(_ code: CURLcode) { transfer.end(code == CURLE_OK ? .success(()) : .failure(error(code))) }

    private func error(_ code: CURLcode) -> ApusError {
        let message = message(code)
        switch code {
        case CURLE_OPERATION_TIMEDOUT:
            let isWhole = transfer.request.timeout.map { start + $0 <= .now() } ?? false
            return ApusError(isWhole ? .deadlineExceeded : .connectFailed, message)
        case CURLE_COULDNT_CONNECT where refusedAddress != nil:
            return ApusError(.notAllowed, "the host leads to an address that may not be connected to")
        case CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_CONNECT, CURLE_SSL_CONNECT_ERROR, CURLE_PEER_FAILED_VERIFICATION,
            CURLE_SSL_CACERT_BADFILE, CURLE_SSL_CERTPROBLEM, CURLE_SSL_CIPHER, CURLE_SSL_ISSUER_ERROR,
            CURLE_SSL_ENGINE_INITFAILED:
            return ApusError(.connectFailed, message)
        case CURLE_URL_MALFORMAT, CURLE_LOGIN_DENIED: return ApusError(.badParameter, message)
        case CURLE_UNSUPPORTED_PROTOCOL, CURLE_WEIRD_SERVER_REPLY, CURLE_HTTP2: return ApusError(.malformed, message)
        case CURLE_OUT_OF_MEMORY, CURLE_UNKNOWN_OPTION, CURLE_NOT_BUILT_IN: return ApusError(.internalFailure, message)
        default: return ApusError(.linkLost, message)
        }
    }

    private func message(_ code: CURLcode) -> String {
        let number = code == CURLE_COULDNT_CONNECT ? apus_curl_system_error(easy) : 0
        if number != 0 { return TransferReason.words(ofSystem: CInt(number)) }
        let sentence = String(cString: reason)
        guard sentence.isEmpty else { return TransferReason.words(of: sentence) }
        return curl_easy_strerror(code).map { String(cString: $0) } ?? ""
    }
}
