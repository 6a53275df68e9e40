package import ApusCore
package import ApusWire

/// What a client's connection may do next (D6): hello first, then frames, then goodbye.
///
/// Pure. Times come in; the handler runs what comes out.
package struct ClientConnectionStateMachine: Sendable {
    package struct Timing: Sendable {
        package var handshakeTimeout: Duration
        package var keepalive: Duration
        package var streamKeepalive: Duration
        package var idleTimeout: Duration
        package var slowReaderTimeout: Duration

        package init(
            handshakeTimeout: Duration, keepalive: Duration, streamKeepalive: Duration, idleTimeout: Duration,
            slowReaderTimeout: Duration
        ) {
            self.handshakeTimeout = handshakeTimeout
            self.keepalive = keepalive
            self.streamKeepalive = streamKeepalive
            self.idleTimeout = idleTimeout
            self.slowReaderTimeout = slowReaderTimeout
        }
    }

    /// What is to be done with a frame.
    package enum OnFrame: Sendable, Equatable {
        /// The hello: check who it is, then call ``admitted(now:)`` or ``closed()``.
        case authenticate
        /// Of an admitted client: serve it.
        case serve
        case pong
        case ignore
        case close(ApusError)
    }

    /// What is to be done when time went by.
    package enum OnTick: Sendable, Equatable {
        case nothing
        /// Something is to be sent, so that the client knows that this node is there.
        case keepalive
        case close(ApusError)
    }

    private enum State: Sendable {
        case awaitingHello
        case authenticating
        case open
        case closed
    }

    /// How many idle timeouts a client with a stream may be silent: it is sent something all the time, and the kernel
    /// ends a connection whose peer does not acknowledge that (TCP_USER_TIMEOUT).
    package static let streamPatience = 6

    private let timing: Timing
    private var state = State.awaitingHello
    private let since: MonotonicTime
    private var lastHeard: MonotonicTime
    private var behindSince: MonotonicTime?
    /// When the client's token ends, in Unix seconds.
    private var tokenExpires = Int64.max
    /// Streams that are open; with one, the shorter keepalive and the longer idle timeout hold.
    package private(set) var streamCount = 0

    package init(timing: Timing, now: MonotonicTime) {
        self.timing = timing
        since = now
        lastHeard = now
    }

    package var isOpen: Bool {
        if case .open = state { true } else { false }
    }

    package var isClosed: Bool {
        if case .closed = state { true } else { false }
    }

    package var isAuthenticating: Bool {
        if case .authenticating = state { true } else { false }
    }

    package mutating func received(_ kind: FrameKind, now: MonotonicTime) -> OnFrame {
        lastHeard = now
        switch state {
        case .awaitingHello:
            guard kind == .hello else {
                return .close(ApusError(.malformed, "the first frame must be a hello"))
            }
            state = .authenticating
            return .authenticate
        case .authenticating:
            return .close(ApusError(.malformed, "nothing may follow the hello before the welcome"))
        case .open:
            switch kind {
            case .ping: return .pong
            case .pong: return .ignore
            case .media, .request, .tell, .cancel, .goodbye: return .serve
            default: return .close(ApusError(.malformed, "a frame of kind \(kind) is not expected here"))
            }
        case .closed:
            return .ignore
        }
    }

    /// The client is who it says; frames are served from here on.
    ///
    /// - Parameter tokenExpires: when its token ends, in Unix seconds of the cluster's clock.
    package mutating func admitted(now: MonotonicTime, tokenExpires: Int64 = .max) {
        guard isAuthenticating else { return }
        state = .open
        self.tokenExpires = tokenExpires
        lastHeard = now
    }

    package mutating func closed() { state = .closed }

    /// Streams were opened or ended. With the last of them the longer idle timeout ends, and the shorter one begins.
    package mutating func streamsChanged(count: Int, now: MonotonicTime) {
        if streamCount > 0, count == 0 { lastHeard = max(lastHeard, now) }
        streamCount = count
    }

    package mutating func writabilityChanged(isWritable: Bool, now: MonotonicTime) {
        behindSince = isWritable ? nil : (behindSince ?? now)
    }

    /// The cluster's clock shows so many Unix seconds. Closes an admitted client with 12002 where its token has ended
    /// (IV-A6).
    package func wallClockRead(seconds: Int64) -> OnTick {
        isOpen && seconds >= tokenExpires ? .close(ApusError(.tokenExpired)) : .nothing
    }

    /// Time has passed; `lastSent` is when this node last sent something.
    package mutating func tick(now: MonotonicTime, lastSent: MonotonicTime) -> OnTick {
        switch state {
        case .awaitingHello, .authenticating:
            return now - since >= timing.handshakeTimeout ? .close(ApusError(.handshakeTimeout)) : .nothing
        case .open:
            let patience = streamCount > 0 ? timing.idleTimeout * Self.streamPatience : timing.idleTimeout
            if now - lastHeard >= patience { return .close(ApusError(.idleTimeout)) }
            if let behindSince {
                return now - behindSince >= timing.slowReaderTimeout ? .close(ApusError(.slowReader)) : .nothing
            }
            let limit = streamCount > 0 ? timing.streamKeepalive : timing.keepalive
            return now - lastSent >= limit ? .keepalive : .nothing
        case .closed:
            return .nothing
        }
    }
}
