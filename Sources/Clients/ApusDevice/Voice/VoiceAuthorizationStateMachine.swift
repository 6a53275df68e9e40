package import ApusCore

/// How a voice client comes to its token and keeps one (VA-3, VA-4): the device's side of RFC 8628, and RFC 6749 §6.
///
/// Without a token it asks for codes, shows one, and asks for the token until a person has decided. With a token it
/// asks for the next one after two thirds of the token's lifetime. Both clocks count, since the wall clock of a device
/// may be wrong: what comes first is done, and a wall clock before the time at which the token was received says
/// nothing, so the token is refreshed at once.
///
/// Pure: time comes in. Each question has a number, and an answer to an earlier one is ignored.
package struct VoiceAuthorizationStateMachine: Sendable {
    package enum Action: Sendable, Equatable {
        case requestCodes(Int)
        case poll(Int, deviceCode: String)
        case refresh(Int, token: String)
        /// Show this to a person.
        case show(VoiceAuthorization)
        case report(VoiceAuthorizationState, ApusError?)
        /// Store the token, and use it from now on.
        case store(VoiceToken)
        /// Use a token that was stored.
        case use(VoiceToken)
        /// Forget everything.
        case erase
    }

    private struct Waiting: Sendable {
        var codes: VoiceCodes
        var interval: Duration
        /// The next question; nil while one is in progress.
        var next: MonotonicTime?
        var end: MonotonicTime
    }

    private struct Held: Sendable {
        var token: VoiceToken
        /// By the clock since the start: the same times as the token has.
        var refreshAt: MonotonicTime
        var expiresAt: MonotonicTime
        /// Nil while a question is in progress.
        var next: MonotonicTime?
        var isExpired = false
        /// A session has used it, or it comes from the database: the next one may be accepted where it is refused.
        var mayBeOld: Bool
    }

    private enum State: Sendable {
        case initial
        /// Without codes; the next question, nil while one is in progress.
        case codeless(next: MonotonicTime?)
        case waiting(Waiting)
        case held(Held)
        case ended
    }

    /// A wall clock may be set back by so many seconds without a consequence.
    private static let leeway: Int64 = 30
    private static let step = Duration.seconds(5)

    private var state = State.initial
    private var question = 0
    private var backoff = Backoff(first: .seconds(1), longest: .seconds(60))

    package init() {}

    package var reported: VoiceAuthorizationState {
        switch state {
        case .initial, .codeless, .waiting: .uninitialized
        case .held(let held): held.isExpired ? .expired : .refreshed
        case .ended: .unrecoverableError
        }
    }

    /// The time of the next ``tick(_:)`` by the clock since the start; nil: none is needed.
    package var nextTick: MonotonicTime? {
        switch state {
        case .initial, .ended: nil
        case .codeless(let next): next
        case .waiting(let waiting): waiting.next.map { min($0, waiting.end) } ?? waiting.end
        case .held(let held):
            held.isExpired
                ? held.next : [held.next.map { max($0, held.refreshAt) }, held.expiresAt].compactMap(\.self).min()
        }
    }

    // MARK: - Events

    /// The client was started, with the token of its database.
    package mutating func start(_ token: VoiceToken?, _ now: VoiceTime) -> [Action] {
        guard case .initial = state else { return [] }
        guard let token else { return [.report(.uninitialized, nil)] + requestCodes() }
        hold(token, mayBeOld: true, now)
        let isWrong = isClockBefore(token, now)
        let first: [Action] = !isWrong && now.wall >= token.expires ? [] : [.report(.refreshed, nil), .use(token)]
        return first + tick(now)
    }

    /// Time has passed, or a clock was set.
    package mutating func tick(_ now: VoiceTime) -> [Action] {
        switch state {
        case .initial, .ended: return []
        case .codeless(let next):
            guard let next, now.up >= next else { return [] }
            return requestCodes()
        case .waiting(var waiting):
            guard now.up < waiting.end else { return requestCodes() }
            guard let next = waiting.next, now.up >= next else { return [] }
            waiting.next = nil
            state = .waiting(waiting)
            question += 1
            return [.poll(question, deviceCode: waiting.codes.deviceCode)]
        case .held(var held):
            var actions: [Action] = []
            let isWrong = isClockBefore(held.token, now)
            if !held.isExpired, now.up >= held.expiresAt || (!isWrong && now.wall >= held.token.expires) {
                held.isExpired = true
                actions.append(.report(.expired, ApusError(.tokenExpired)))
            }
            let isDue =
                held.isExpired || isWrong || now.up >= held.refreshAt
                || now.wall >= Self.refreshAt(held.token)
            if isDue, let next = held.next, now.up >= next {
                held.next = nil
                question += 1
                actions.append(.refresh(question, token: held.token.refresh))
            }
            state = .held(held)
            return actions
        }
    }

    /// The codes that were asked for.
    package mutating func codesReceived(
        _ number: Int, _ result: Result<VoiceCodes, ApusError>, _ now: VoiceTime
    ) -> [Action] {
        guard number == question, case .codeless(nil) = state else { return [] }
        switch result {
        case .success(let codes):
            backoff.reset()
            state = .waiting(
                Waiting(
                    codes: codes, interval: codes.interval, next: now.up + codes.interval,
                    end: now.up + codes.lifetime))
            return [.show(codes.shown)]
        case .failure(let error):
            // The cluster does not know the product, or the device's id is not valid: nothing changes that.
            if error.code == .badParameter || error.code == .notAllowed { return end(error) }
            state = .codeless(next: now.up + backoff.next())
            return []
        }
    }

    /// The answer to ``Action/poll(_:deviceCode:)`` or ``Action/refresh(_:token:)``.
    package mutating func answered(_ number: Int, _ answer: VoiceAnswer, _ now: VoiceTime) -> [Action] {
        guard number == question else { return [] }
        switch (state, answer) {
        case (.waiting(let waiting), _) where waiting.next == nil: return polled(waiting, answer, now)
        case (.held(let held), _) where held.next == nil: return refreshed(held, answer, now)
        case (.initial, _), (.codeless, _), (.waiting, _), (.held, _), (.ended, _): return []
        }
    }

    /// A session has used the token.
    package mutating func sessionOpened() {
        guard case .held(var held) = state else { return }
        held.mayBeOld = true
        state = .held(held)
    }

    /// The cluster has refused the token of a session. It may have been revoked, or the clocks differ: the answer to
    /// the question for the next token says which.
    package mutating func sessionRefused(_ now: VoiceTime) -> [Action] {
        // A new token that is refused too, such as of a disabled device, is followed by another one at its time.
        guard case .held(var held) = state, held.next != nil, held.mayBeOld else { return [] }
        (held.refreshAt, held.next, held.mayBeOld) = (now.up, now.up, false)
        state = .held(held)
        return tick(now)
    }

    /// Begins again, without a token (VA-5).
    package mutating func reset() -> [Action] {
        (state, backoff) = (.initial, Backoff(first: .seconds(1), longest: .seconds(60)))
        return [.erase, .report(.uninitialized, nil)] + requestCodes()
    }

    /// What waits for its next attempt is tried at once, such as when the device has a network again.
    package mutating func hurry(_ now: VoiceTime) -> [Action] {
        backoff.reset()
        switch state {
        case .initial, .ended, .waiting: break
        case .codeless(let next): if next != nil { state = .codeless(next: now.up) }
        case .held(var held):
            if held.next != nil { held.next = now.up }
            state = .held(held)
        }
        return tick(now)
    }

    // MARK: - Parts

    private mutating func requestCodes() -> [Action] {
        state = .codeless(next: nil)
        question += 1
        return [.requestCodes(question)]
    }

    private mutating func polled(_ before: Waiting, _ answer: VoiceAnswer, _ now: VoiceTime) -> [Action] {
        var waiting = before
        switch answer {
        case .token(let token, let refresh, let lifetime): return received(token, refresh, lifetime, now)
        case .denied: return end(ApusError(.notAllowed, "the device was refused"))
        case .invalid:
            // Another code is asked for, but not in a loop.
            state = .codeless(next: now.up + backoff.next())
            return []
        case .pending: backoff.reset()
        case .slowDown: waiting.interval += Self.step
        case .failed: waiting.interval = max(waiting.interval, backoff.next())
        }
        waiting.next = now.up + waiting.interval
        // A failure does not make the device slower for good.
        if case .failed = answer { waiting.interval = before.interval }
        state = .waiting(waiting)
        return []
    }

    private mutating func refreshed(_ before: Held, _ answer: VoiceAnswer, _ now: VoiceTime) -> [Action] {
        var held = before
        switch answer {
        case .token(let token, let refresh, let lifetime): return received(token, refresh, lifetime, now)
        case .denied, .invalid: return end(ApusError(.tokenInvalid, "the device's access has ended"))
        case .pending, .slowDown, .failed: held.next = now.up + backoff.next()
        }
        state = .held(held)
        return tick(now)
    }

    private mutating func received(
        _ text: String, _ refresh: String, _ lifetime: Int64, _ now: VoiceTime
    ) -> [Action] {
        backoff.reset()
        let token = VoiceToken(token: text, refresh: refresh, received: now.wall, expires: now.wall + lifetime)
        hold(token, mayBeOld: false, now)
        return [.store(token), .report(.refreshed, nil), .use(token)]
    }

    private mutating func end(_ error: ApusError) -> [Action] {
        state = .ended
        return [.report(.unrecoverableError, error)]
    }

    private mutating func hold(_ token: VoiceToken, mayBeOld: Bool, _ now: VoiceTime) {
        let lifetime = max(0, token.expires - token.received)
        // A wall clock that is wrong makes neither time later than the token's lifetime from now.
        let left = max(0, min(lifetime, token.expires - now.wall))
        let untilRefresh = max(0, min(lifetime, Self.refreshAt(token) - now.wall))
        state = .held(
            Held(
                token: token, refreshAt: now.up + .seconds(untilRefresh), expiresAt: now.up + .seconds(left),
                next: now.up, mayBeOld: mayBeOld))
    }

    /// After two thirds of its lifetime, in Unix seconds.
    private static func refreshAt(_ token: VoiceToken) -> Int64 {
        token.received + (token.expires - token.received) / 3 * 2
    }

    private func isClockBefore(_ token: VoiceToken, _ now: VoiceTime) -> Bool {
        now.wall < token.received - Self.leeway
    }
}
