package import ApusCore
import SwiftProtobuf

/// The call of one party, a device or an account: a party is on one call at a time (CALL-5).
///
/// A call claims its caller's party first, and the called parties after that. A party that is claimed refuses other
/// calls: the caller receives −2511, the called party −2520. A claim is released when the call has ended for the
/// party. It also expires unless the call renews it, so a lost call does not block a party for long.
///
/// **Glare.** Two parties that call each other have both claimed themselves as callers when each call reaches the
/// other party. If neither call has further parties, the call with the lesser id continues: it takes over the party of
/// the other call, which is refused at one party and superseded at the other. Both parties decide alike, so exactly
/// one call continues. The client of the party that was taken over may be rung before it is notified that its call has
/// ended. It gives that call up, and does not report that it is busy. No answering machine takes the call that ends,
/// and a message ends when the party that it is for calls back. A call with further parties continues with those, and
/// the two parties are busy for each other.
///
/// **Devices of others.** An account may be called by a device of another account that is shared with it. Until such a
/// call is answered, a call of a device of the account's own takes the party over, so that it never finds the line busy
/// because another account's device rings. The other call is refused: its caller receives −2511.
///
/// **Repetitions.** A claim that is repeated is a renewal. A claim that arrives after its call has released the party
/// is refused.
///
/// Pure value: confined to its owner. Times are Unix milliseconds of the cluster's clock.
package struct PartyStateMachine: Sendable {
    /// The answer to a claim.
    package enum Answer: Sendable, Hashable {
        case granted
        /// The party is granted to this call. The other one has lost it.
        case grantedInsteadOf(CallID)
        case refused
        /// The party calls this call's caller, and that call continues instead.
        case crossed
    }

    /// The state to replicate.
    package private(set) var state: CallPartyState
    package let configuration: CallConfiguration

    /// - Throws: 10001 if the state is not one of a party.
    package init(
        restoring state: CallPartyState = CallPartyState(), _ configuration: CallConfiguration = CallConfiguration()
    ) throws(ApusError) {
        let ids = [state.claim.call, state.released]
        guard ids.allSatisfy({ $0.isEmpty || CallID(rawValue: $0) != nil }) else {
            throw ApusError(.malformed, "the state is not one of a party")
        }
        (self.state, self.configuration) = (state, configuration)
    }

    /// True while a call holds the party.
    package func isOnCalling(at now: Int64) -> Bool { !state.claim.call.isEmpty && now < state.claim.untilMs }

    /// A call claims the party, or renews its claim.
    ///
    /// - Throws: 10001 if the call has no valid id.
    package mutating func claim(_ claim: CallPartyClaim, at now: Int64) throws(ApusError) -> Answer {
        guard CallID(rawValue: claim.call) != nil else { throw ApusError(.malformed, "a claim has the id of a call") }
        advance(at: now)
        guard claim.call != state.released else { return .refused }
        let holder = state.claim
        let isCrossing = crosses(claim, holder)
        let isGlare = isCrossing && claim.call < holder.call
        let isPreferred = holder.call != claim.call && isPreferred(claim, to: holder)
        guard holder.call.isEmpty || holder.call == claim.call || isGlare || isPreferred else {
            return isCrossing ? .crossed : .refused
        }
        state.claim = claim
        let until = CallStateMachine.time(now, plus: configuration.claimTime)
        state.claim.untilMs = min(until, max(claim.untilMs, holder.call == claim.call ? holder.untilMs : now))
        return isGlare || isPreferred ? .grantedInsteadOf(CallID(unchecked: holder.call)) : .granted
    }

    /// The call has ended for the party. Has no effect on the claim of another call.
    package mutating func release(_ call: CallID, at now: Int64) {
        (state.released, state.releasedMs) = (call.rawValue, now)
        if state.claim.call == call.rawValue { state.claim = CallPartyClaim() }
    }

    /// Ends a claim that was not renewed.
    package mutating func advance(at now: Int64) {
        if !state.claim.call.isEmpty, !isOnCalling(at: now) { state.claim = CallPartyClaim() }
    }

    /// When ``advance(at:)`` has to be called next; nil if no call holds the party.
    package var nextMs: Int64? { state.claim.call.isEmpty ? nil : state.claim.untilMs }

    /// The calls that may have notices for a client of the party that returns: the one that the party is on, and the
    /// one that has released it, as long as a call repeats its end.
    package func recentCalls(at now: Int64) -> [CallID] {
        let isRecent = now < CallStateMachine.time(state.releasedMs, plus: configuration.endedTimeMax)
        return [state.claim.call, isRecent ? state.released : ""].filter { !$0.isEmpty }.map { CallID(unchecked: $0) }
    }

    /// True for a call of a device of the account's own, while one of another account's rings.
    private func isPreferred(_ claim: CallPartyClaim, to holder: CallPartyClaim) -> Bool {
        holder.guest && !holder.answered && !claim.guest && !claim.isCaller
    }

    /// True for a call of this party's peer that crosses this party's own call to the same peer.
    private func crosses(_ claim: CallPartyClaim, _ own: CallPartyClaim) -> Bool {
        own.isCaller && !claim.isCaller && own.hasPeer && claim.hasPeer && own.peer == claim.peer
    }
}
