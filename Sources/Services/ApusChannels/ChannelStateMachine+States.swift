import ApusCore
import ApusMedia

/// What a channel has beside its ring: each state carries only what exists in it.
extension ChannelStateMachine {
    /// What this node does for the channel.
    enum Duty: Sendable {
        /// It is the primary.
        case lead(Primary)
        /// Another node is, or none that is known.
        case follow(Feed)
    }

    /// Where the frames of a node that is not the primary come from.
    enum Feed: Sendable {
        /// The primary of a term copies them here: this node stands by, or the map is about to say so.
        case copy(term: Epoch)
        /// This node asks for them while it has receivers: at most one stream in use and one that is to take its place.
        case subscriptions([Upstream])
    }

    /// Who uses the channel here.
    enum Use: Sendable {
        /// Viewers or edges receive it.
        case watched
        case unwatched
        /// Nobody used it for long: it is not copied until somebody does.
        case released
    }

    /// How old the frames are that are held.
    enum Picture: Sendable {
        /// They go on from what feeds this node.
        case current
        /// Nothing came since the node has receivers: they may be old.
        ///
        /// - wantedAfter: the earliest position after which a receiver wants frames.
        case old(wantedAfter: FramePosition?)

        var isOld: Bool { if case .old = self { true } else { false } }
    }

    /// An instance of the device's software, with the epoch that numbers its frames.
    struct Publisher: Sendable {
        let epoch: UInt32
        let instance: UInt64
        /// This node, as primary, said that every sequence below is safe.
        var acknowledged: UInt64?
    }

    /// A stream by which a publisher sends to this primary.
    struct Stream: Sendable {
        let id: IngestID
        /// What came before this number is gone for good: the publisher itself no longer holds it.
        let startsAt: UInt64
        /// The publisher was notified of a gap, and is to go on from here.
        var askedToResumeAt: UInt64?
    }

    /// A publisher with its stream.
    struct Attached: Sendable {
        let publisher: Publisher
        let stream: Stream
    }

    /// What one other node gets of this primary's frames.
    struct Copy: Sendable {
        enum Step: Sendable {
            case opening
            /// - confirmed: the newest frame that the node has confirmed.
            case active(confirmed: FramePosition?)
            case waiting(until: MonotonicTime)
        }

        let node: NodeID
        var step = Step.opening
        var retries: Backoff

        /// The newest frame that the node has confirmed, while the copy is open.
        var confirmed: FramePosition? { if case .active(let confirmed) = step { confirmed } else { nil } }
        var isActive: Bool { if case .active = step { true } else { false } }
        var isWaiting: Bool { if case .waiting = step { true } else { false } }

        func has(_ position: FramePosition) -> Bool { confirmed.map { $0 >= position } ?? false }
    }

    /// The node that is to stand by, as soon as it has everything.
    enum Candidate: Sendable {
        case none
        /// It is copied to, and nothing waits for it.
        case followed(NodeID, Mark?)
        /// It had everything that was acknowledged: nothing is acknowledged any more without it.
        case counted(NodeID)
        /// It was counted, and then owed a confirmation for too long; it is followed again.
        case late(NodeID, Mark?)

        /// What the candidate was to have to be counted, since a time.
        struct Mark: Sendable {
            var position: FramePosition
            var since: MonotonicTime
        }

        var node: NodeID? {
            switch self {
            case .none: nil
            case .followed(let node, _), .counted(let node), .late(let node, _): node
            }
        }
        var isCounted: Bool { if case .counted = self { true } else { false } }
        var isLate: Bool { if case .late = self { true } else { false } }

        /// The same, with another mark.
        func marked(_ mark: Mark?) -> Self {
            switch self {
            case .followed(let node, _): .followed(node, mark)
            case .late(let node, _): .late(node, mark)
            case .none, .counted: self
            }
        }
    }

    /// Whether the standby, and a candidate that counts, confirm in time.
    enum Protection: Sendable {
        /// Nothing is owed.
        case kept
        case owed(Debt)
        /// A confirmation was owed for too long: frames are acknowledged without it.
        case lost(Debt?)

        /// What is owed longest: every sequence below `next`, since a time.
        struct Debt: Sendable {
            var next: UInt64
            var since: MonotonicTime
        }

        var debt: Debt? {
            switch self {
            case .kept: nil
            case .owed(let debt): debt
            case .lost(let debt): debt
            }
        }
        var isLost: Bool { if case .lost = self { true } else { false } }
    }

    /// A subscription of this node at another one.
    struct Upstream: Sendable {
        let id: SubscriptionID
        let node: NodeID
        /// What was asked for; nil: the live picture.
        let after: FramePosition?
        var isOpen = false
    }

    /// When, and where first, a subscription is tried again.
    struct Retry: Sendable {
        /// Not before this; nil: at once.
        var at: MonotonicTime?
        var waits: Backoff
        /// The owner did not answer: the standby is asked next.
        var asksStandby = false
    }
}
