package import ApusCore

/// Sends HTTP requests to other servers, over libcurl: HTTP/1.1 and HTTP/2, with and without TLS.
///
/// A client has a pool of connections of its own, which ends with it. Redirects are not followed, the environment's
/// proxies are not used, and no answer is decompressed. Nothing is sent twice: where the server closes a connection of
/// the pool before it answers, the request fails with 10008, unless none of its body was sent.
///
/// Concurrency model: any task. One thread for each client runs all transfers. It ends after ``close()`` or with the
/// client.
package final class HTTPClient: Sendable {
    private let loop: TransferLoop

    /// - Throws: 10018 if libcurl has no memory, or the system cannot create another thread.
    package init(_ settings: Settings) throws(ApusError) {
        loop = try TransferLoop(settings)
        try loop.start()
    }

    deinit { loop.stop() }

    /// Sends a request, and waits for the whole answer.
    ///
    /// - Throws: 21022 if there is no connection, or TLS fails; 12004 if the host has only addresses that the client
    ///   may not connect to; 10005 after the request's time-out; 10002 if the answer
    ///   or its head is too long; 10001 if it is not HTTP; 10008 if the connection or the client is closed before its
    ///   end; 10006 if the task is cancelled; 10007 if too many requests are in progress; 21031 if the request is not
    ///   valid.
    package func send(_ request: Request) async throws(ApusError) -> Answer {
        let transfer = HTTPTransfer(request, isStreamed: false)
        try loop.begin(transfer)
        await loop.wait(for: .end, of: transfer)
        return try transfer.answer()
    }

    /// Sends a request, waits for the answer's head, and reads the body part by part. The request ends with the
    /// closure, also if the body was not read to its end.
    ///
    /// - Throws: what ``send(_:)`` throws, and what the closure throws.
    package func withAnswer<Result: Sendable>(
        to request: Request, _ read: (HTTPAnswerStream) async throws(ApusError) -> Result
    ) async throws(ApusError) -> Result {
        let transfer = HTTPTransfer(request, isStreamed: true)
        try loop.begin(transfer)
        defer { loop.cancel(transfer) }
        await loop.wait(for: .head, of: transfer)
        return try await read(HTTPAnswerStream(head: try transfer.head(), transfer: transfer, loop: loop))
    }

    /// Closes all connections. Requests in progress and later ones fail with 10008.
    package func close() { loop.stop() }

    /// Closes all connections, and waits until that is done.
    package func shutdown() async {
        loop.stop()
        await loop.ended()
    }
}

/// The answer to a request whose body arrives in parts.
package struct HTTPAnswerStream: Sendable {
    /// The status and the headers.
    package let head: HTTPHead
    let transfer: HTTPTransfer
    let loop: TransferLoop

    /// The next part of the body, in order; nil after the last one. While parts wait, the server is slowed down:
    /// the connection is not read beyond ``HTTPClient/Settings/bufferByteCountMax``.
    ///
    /// - Throws: as ``HTTPClient/send(_:)``.
    package func next() async throws(ApusError) -> [UInt8]? {
        await loop.wait(for: .part, of: transfer)
        let (part, wasPaused) = try transfer.takePart()
        if wasPaused { loop.resume(transfer) }
        return part
    }

    /// The headers after the body. Complete after the last part.
    package var trailers: [HTTPHead.Field] { transfer.trailers() }
}
