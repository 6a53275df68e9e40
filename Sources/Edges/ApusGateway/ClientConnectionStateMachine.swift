package import ApusCore
package import ApusWire

/// The protocol state of a client's connection (D6): first the hello, then frames, then the goodbye.
/// Pure. Times are passed in; the handler carries out the results.
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

    /// What the handler does with a frame.
    package enum OnFrame: Sendable, Equatable {
        /// The hello: authenticate the client, then call ``admitted(now:)`` or ``closed()``.
        case authenticate
        /// A frame of an admitted client: serve it.
        case serve
        case pong
        case ignore
        case close(ApusError)
    }

    /// What the handler does after time has passed.
    package enum OnTick: Sendable, Equatable {
        case nothing
        /// Send a frame, so that the client knows that this node is alive.
        case keepalive
        case close(ApusError)
    }

    private enum State: Sendable {
        case awaitingHello
        case authenticating
        case open
        case closed
    }

    /// The number of idle timeouts that a client with a stream may be silent. The node sends to it all the time, and
    /// the kernel ends a connection whose peer does not acknowledge the data (TCP_USER_TIMEOUT).
    package static let streamIdleFactor = 6

    private let timing: Timing
    private var state = State.awaitingHello
    private let since: MonotonicTime
    private var lastHeard: MonotonicTime
    private var behindSince: MonotonicTime?
    /// The token's expiry, in Unix seconds.
    private var tokenExpires = Int64.max
    /// The number of open streams. With one or more, the shorter keepalive and the longer idle timeout apply.
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

    /// Notes that the client was authenticated. From now on its frames are served.
    /// - Parameter tokenExpires: the token's expiry, in Unix seconds of the cluster's clock.
    package mutating func admitted(now: MonotonicTime, tokenExpires: Int64 = .max) {
        guard isAuthenticating else { return }
        state = .open
        self.tokenExpires = tokenExpires
        lastHeard = now
    }

    package mutating func closed() { state = .closed }

    /// Notes that streams were opened or ended. The end of the last one ends the longer idle timeout and starts the
    /// shorter one.
    package mutating func streamsChanged(count: Int, now: MonotonicTime) {
        if streamCount > 0, count == 0 { lastHeard = max(lastHeard, now) }
        streamCount = count
    }

    package mutating func writabilityChanged(isWritable: Bool, now: MonotonicTime) {
        behindSince = isWritable ? nil : (behindSince ?? now)
    }

    /// Processes a reading of the cluster's clock, in Unix seconds. Closes an admitted client with 12002 if its token
    /// has expired (IV-A6).
    package func wallClockRead(seconds: Int64) -> OnTick {
        isOpen && seconds >= tokenExpires ? .close(ApusError(.tokenExpired)) : .nothing
    }

    /// Processes the passing of time. `lastSent` is the time at which this node last sent something.
    package mutating func tick(now: MonotonicTime, lastSent: MonotonicTime) -> OnTick {
        switch state {
        case .awaitingHello, .authenticating:
            return now - since >= timing.handshakeTimeout ? .close(ApusError(.handshakeTimeout)) : .nothing
        case .open:
            let idleLimit = streamCount > 0 ? timing.idleTimeout * Self.streamIdleFactor : timing.idleTimeout
            if now - lastHeard >= idleLimit { return .close(ApusError(.idleTimeout)) }
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
