/// What a change of a call causes. The owner carries it out when the change is confirmed.
///
/// Each action may be repeated until it is confirmed, also after the death of an owner. A leg therefore recognizes
/// repetitions by the call's id and the kind of the notice.
package enum CallAction: Sendable, Hashable {
    /// Claim the party for the call, or renew the claim. The answer is ``CallClusterEvent/partyClaimed(_:)`` or
    /// ``CallClusterEvent/partyRefused(_:)`` or ``CallClusterEvent/partyCrossed(_:)``.
    case claim(CallParty, CallPartyClaim)
    /// Release the party. The answer is ``CallClusterEvent/partyReleased(_:)``.
    case release(CallParty)
    /// Notify a called leg of the call, over its session and by push. It confirms with ``CallEvent/rang``.
    case ring(leg: Int)
    /// Notify a called leg that the call is over for it. It confirms with ``CallEvent/confirmed(_:)``.
    case stopRinging(leg: Int, CallLegEnd)
    /// Notify the caller that a leg rings (CALL-7).
    case reportRinging
    /// Notify the caller or the winner that the call is accepted, or the caller that it can leave a message. The leg
    /// watches the peer; the peer of a caller that leaves a message is itself.
    case reportAccepted(leg: Int, peer: Int)
    /// Notify the caller or the winner that the call is over.
    case reportEnd(leg: Int, CallLegEnd)
    /// End the media of the caller and of the winner, once. A node that is not reached asks the call itself
    /// (``CallConfiguration/mediaCheckInterval``).
    case releaseChannels
    /// Write the record of the call, which has ended.
    case writeRecord
    /// Record the caller's media as a message, and store it when the call is over. The answers are
    /// ``CallClusterEvent/messageStored`` and ``CallClusterEvent/messageFull``.
    case recordMessage(isOver: Bool)
}

/// An event of a client. Each can be repeated without a further effect.
package enum CallEvent: Sendable, Hashable {
    /// A push has notified an app of the call, and it asks what to do. An app of a called account becomes a leg.
    case joined
    /// The leg rings. It confirms ``CallAction/ring(leg:)``.
    case rang
    case accepted
    case rejected
    /// The leg does not ring, since it is on another call.
    case wasBusy
    /// The caller gives up. After the accept it is a hang-up.
    case cancelled
    /// Before the accept it is a cancel of the caller, or a reject of a called leg.
    case hungUp
    /// The leg has media.
    case connected
    /// An exception with its number (CALL-8, CALL-14).
    case failed(Int32)
    /// The leg has received the notice of this stage.
    case confirmed(CallStage)
    /// The cluster reports a new session of the leg, which may have lost all notices…
    case sessionStarted
    /// …or the end of its session.
    case sessionEnded
}

/// An event of the cluster.
package enum CallClusterEvent: Sendable, Hashable {
    case partyClaimed(CallParty)
    /// The party is on another call, or was claimed by another call since.
    case partyRefused(CallParty)
    /// The party calls this call's caller, and that call continues instead.
    case partyCrossed(CallParty)
    case partyReleased(CallParty)
    case recordWritten
    case messageStored
    /// The message has its largest size.
    case messageFull
    /// The state was restored at a new owner: what was not confirmed is sent again.
    case restored
    case timeAdvanced
}
