package import ApusCore

/// How a call ended for one leg: the reason, and the number that the leg receives (CALL-8, CALL-9, CALL-15).
///
/// | reason | caused by | the caller receives | a called leg receives |
/// |---|---|---|---|
/// | hung up | a leg | 0, or −2513 if the other one hung up | the same |
/// | cancelled | the caller | 0 | −2523 |
/// | rejected | a called leg | −2510 | 0 if it has rejected, otherwise −2521 |
/// | busy | the called parties | −2511 | −2520 |
/// | not answered | the time-out | −2512 | −2530 |
/// | unreachable | the called legs | −2512 | −2532 |
/// | on calling | the caller's other call | −2520 | it was not called |
/// | glare | the called party's call | −2511 | −2523 |
/// | connect timed out | | −2531 | −2531 |
/// | duration ended | | −2530 | −2530 |
/// | lost | a leg | −2532; −2523 for a called leg if the caller was lost before the accept | the same |
/// | failed | a leg | its own number; see ``peerNumber(of:)`` | the same |
/// | answered by others | a called leg | the call continues | −2522 |
/// | message left | the caller, or the longest message | 0 | −2530 |
package struct CallLegEnd: Sendable, Hashable {
    package let reason: CallEndReason
    /// 0 for a normal end.
    package let number: Int32

    package init(_ reason: CallEndReason, _ number: Int32) { (self.reason, self.number) = (reason, number) }

    /// The error that the leg receives; nil for a normal end.
    package var error: ErrorCode? { number == 0 ? nil : ErrorCode(number: number) }

    /// The end of a call as a leg receives it.
    ///
    /// - Parameters:
    ///   - leg: the leg's number; 0 is the caller.
    ///   - isAccepted: a leg had accepted the call.
    package init(of end: CallEnd, for leg: Int, isAccepted: Bool) {
        reason = end.reason
        let (isCaller, isOwn) = (leg == 0, leg == Int(end.leg))
        let isEarly = !isAccepted && end.leg == 0 && !isOwn
        let code: ErrorCode? =
            switch end.reason {
            case .hungUp: isOwn ? nil : .peerHungUp
            case .cancelled: isCaller ? nil : .callCancelled
            case .rejected: isCaller ? .callRejected : isOwn ? nil : .rejectedByOthers
            case .busy: isCaller ? .calleeBusy : .onCalling
            case .notAnswered: isCaller ? .callNotAnswered : .callTimedOut
            case .unreachable: isCaller ? .callNotAnswered : .mediaDisconnected
            case .onCalling: .onCalling
            case .glare: isCaller ? .calleeBusy : .callCancelled
            case .connectTimedOut: .mediaConnectFailed
            case .durationEnded: .callTimedOut
            case .lost: isEarly ? .callCancelled : .mediaDisconnected
            case .failed:
                isOwn ? ErrorCode(number: end.number) : isEarly ? .callCancelled : Self.peerNumber(of: end.number)
            case .answeredByOthers: .answeredByOthers
            case .messageLeft: isCaller ? nil : .callTimedOut
            case .unspecified, .UNRECOGNIZED: nil
            }
        number = code?.number ?? 0
    }

    /// The errors that a leg may report (CALL-13, CALL-14).
    package static let reportable: [ErrorCode] = [
        .mediaConnectFailed, .mediaDisconnected, .remoteStopped, .networkChanged, .enteredBackground,
    ]

    /// What the other leg of an accepted call receives when a leg reports an error. A failure of the connection is one
    /// on both sides. A change at one side, such as an app that goes to the background, is a remote stop at the other.
    package static func peerNumber(of number: Int32) -> ErrorCode {
        switch ErrorCode(number: number) {
        case .mediaConnectFailed: .mediaConnectFailed
        case .mediaDisconnected: .mediaDisconnected
        default: .remoteStopped
        }
    }
}

/// The flags of a call as one leg sees them (CALL-3). They only change from false to true.
package struct CallFlags: Sendable, Hashable {
    /// The leg is the caller.
    package var outgoing = false
    /// A called leg has rung: for the caller any leg, for a called leg itself.
    package var answered = false
    /// The call was accepted: for the caller by any leg, for a called leg by that leg.
    package var accepted = false
    /// The caller and the winner have media.
    package var connected = false
    package var end = false

    package init() {}
}

/// What a leg receives as the answer to an event.
package struct CallView: Sendable, Hashable {
    /// The leg's number; 0 is the caller.
    package let leg: Int
    package let flags: CallFlags
    /// How the call has ended for the leg; nil while it has not.
    package let end: CallLegEnd?

    package init(leg: Int, flags: CallFlags, end: CallLegEnd?) { (self.leg, self.flags, self.end) = (leg, flags, end) }
}
