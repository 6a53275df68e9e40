import ApusCore
import Synchronization

/// One request and what has arrived of its answer: what a task and the client's thread share.
///
/// Concurrency model: any thread. A `Mutex` guards the state. One task waits at a time.
final class HTTPTransfer: Sendable {
    /// What a task waits for. The end of the transfer ends each wait.
    enum Wait { case head, part, end }

    /// What the thread does after it has received bytes.
    enum Step { case goOn, pause, fail }

    fileprivate struct State {
        var head = HTTPHead()
        var trailers: [HTTPHead.Field] = []
        var headByteCount = 0
        /// The head is complete.
        var isAnswered = false
        /// Not yet taken.
        var body: [UInt8] = []
        var bodyByteCount = 0
        var isPaused = false
        var waiter: (wait: Wait, continuation: CheckedContinuation<Void, Never>)?
        /// How the transfer ended; nil before.
        var result: Result<Void, ApusError>?

        func meets(_ wait: Wait) -> Bool {
            guard result == nil else { return true }
            return switch wait {
            case .head: isAnswered
            case .part: !body.isEmpty
            case .end: false
            }
        }

        /// Takes the waiting task, if it is to continue.
        mutating func takeReady() -> CheckedContinuation<Void, Never>? {
            guard let waiter, meets(waiter.wait) else { return nil }
            self.waiter = nil
            return waiter.continuation
        }
    }

    let request: HTTPClient.Request
    private let isStreamed: Bool
    private let state = Mutex(State())

    init(_ request: HTTPClient.Request, isStreamed: Bool) {
        (self.request, self.isStreamed) = (request, isStreamed)
    }

    // MARK: The task

    /// Continues the task at once, or when what it waits for is there.
    func set(_ continuation: CheckedContinuation<Void, Never>, for wait: Wait) {
        let ready = state.withLock { state in
            state.waiter = (wait, continuation)
            return state.takeReady()
        }
        ready?.resume()
    }

    func head() throws(ApusError) -> HTTPHead {
        let (head, isAnswered, result) = state.withLock { ($0.head, $0.isAnswered, $0.result) }
        if !isAnswered { try result?.get() }
        return head
    }

    func answer() throws(ApusError) -> HTTPClient.Answer {
        let (result, answer) = state.withLock { state in
            (state.result, HTTPClient.Answer(head: state.head, body: state.body, trailers: state.trailers))
        }
        try result?.get()
        return answer
    }

    /// What has arrived since the last call; nil at the end. True if the thread waits to continue.
    func takePart() throws(ApusError) -> (part: [UInt8]?, wasPaused: Bool) {
        let (part, wasPaused, result) = state.withLock { state in
            defer { (state.body, state.isPaused) = ([], false) }
            return (state.body, state.isPaused, state.result)
        }
        guard part.isEmpty else { return (part, wasPaused) }
        try result?.get()
        return (nil, false)
    }

    func trailers() -> [HTTPHead.Field] { state.withLock { $0.trailers } }

    var hasEnded: Bool { state.withLock { $0.result != nil } }

    // MARK: The thread

    /// Takes a line of the head or the trailers (RFC 9112 §2.1; libcurl writes HTTP/2 in the same way).
    func received(line: UnsafeRawBufferPointer, byteCountMax: Int) -> Step {
        let text = String(decoding: line, as: UTF8.self)
        return receive { state in
            state.headByteCount += line.count
            guard state.headByteCount <= byteCountMax else {
                return state.fail(ApusError(.frameTooLarge, "the head has more than \(byteCountMax) bytes"))
            }
            state.add(text)
            return .goOn
        }
    }

    /// Takes bytes of the body. They come again after a pause.
    func received(body bytes: UnsafeRawBufferPointer, bufferByteCountMax: Int) -> Step {
        receive { state in
            let countMax = request.answerByteCountMax
            guard bytes.count <= countMax - state.bodyByteCount else {
                return state.fail(ApusError(.frameTooLarge, "the answer has more than \(countMax) bytes"))
            }
            if isStreamed, state.body.count >= bufferByteCountMax {
                state.isPaused = true
                return .pause
            }
            state.body += bytes
            state.bodyByteCount += bytes.count
            return .goOn
        }
    }

    private func receive(_ change: (inout State) -> Step) -> Step {
        let (step, ready) = state.withLock { state in
            // A transfer that was cancelled ends with its next bytes.
            let step = state.result == nil ? change(&state) : .fail
            return (step, state.takeReady())
        }
        ready?.resume()
        return step
    }

    /// Ends the transfer. The first end counts.
    func end(_ result: Result<Void, ApusError>) {
        let ready = state.withLock { state in
            if state.result == nil { state.result = result }
            // libcurl takes a head that was cut off for a whole one.
            if case .success = state.result, !state.isAnswered {
                state.result = .failure(ApusError(.linkLost, "the connection was closed within the head"))
            }
            return state.takeReady()
        }
        ready?.resume()
    }
}

extension HTTPTransfer.State {
    fileprivate mutating func fail(_ error: ApusError) -> HTTPTransfer.Step {
        result = .failure(error)
        return .fail
    }

    fileprivate mutating func add(_ line: String) {
        let text = line.drop { $0.isWhitespace }
        if !isAnswered, text.hasPrefix("HTTP/") {
            // The answers 100 to 199 precede the one that counts.
            head = HTTPHead()
            head.status = text.split(separator: " ").dropFirst().first.flatMap { Int($0) } ?? 0
        } else if let colon = text.firstIndex(of: ":") {
            let value = text[text.index(after: colon)...].trimmed
            let field = HTTPHead.Field(text[..<colon].lowercased(), value)
            if isAnswered { trailers.append(field) } else { head.headers.append(field) }
        } else if text.isEmpty, head.status >= 200 {
            isAnswered = true
        }
    }
}

extension Substring {
    fileprivate var trimmed: String {
        guard let last = lastIndex(where: { !$0.isWhitespace }) else { return "" }
        return String(self[...last].drop { $0.isWhitespace })
    }
}
