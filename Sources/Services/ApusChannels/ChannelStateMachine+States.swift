import ApusCore
import ApusMedia

/// The state of a channel, apart from its ring. Each case carries only what exists in it.
extension ChannelStateMachine {
    /// What this node does for the channel.
    enum Duty: Sendable {
        /// It is the primary.
        case lead(Primary)
        /// Another node is the primary, or none is known.
        case follow(Feed)
    }

    /// The source of the frames at a node that is not the primary.
    enum Feed: Sendable {
        /// The primary of a term copies them here. This node is the standby, or the map is about to name it.
        case copy(term: Epoch)
        /// This node subscribes to them while it has receivers. At most one stream is in use, and at most one other is
        /// about to replace it.
        case subscriptions([Upstream])
    }

    /// How the channel is used here.
    enum Use: Sendable {
        /// Viewers or edges receive it.
        case watched
        case unwatched
        /// It was idle, and the shell is about to remove it. It is not copied until it is used again.
        case released
    }

    /// Whether the held frames are current.
    enum Picture: Sendable {
        /// The ring continues with the frames that feed this node.
        case current
        /// No frame arrived since the node has receivers, so the held frames may be old.
        ///
        /// - wantedAfter: the earliest position after which a receiver resumes.
        case old(wantedAfter: FramePosition?)

        var isOld: Bool { if case .old = self { true } else { false } }
    }

    /// An instance of the device's software, with the epoch that numbers its frames.
    struct Publisher: Sendable {
        let epoch: UInt32
        let instance: UInt64
        /// This node, as the primary, acknowledged every sequence below this one.
        var acknowledged: UInt64?
    }

    /// A publisher's stream to this primary.
    struct Stream: Sendable {
        let id: IngestID
        /// Earlier frames cannot be recovered: the publisher itself no longer holds them.
        let startsAt: UInt64
        /// The publisher was notified of a gap, and asked to send again from here.
        var askedToResumeAt: UInt64?
    }

    /// A publisher with its stream.
    struct Attached: Sendable {
        let publisher: Publisher
        let stream: Stream
    }

    /// The primary's stream of frames to one other node.
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

    /// The node that becomes the standby when it has everything.
    enum Candidate: Sendable {
        case none
        /// It receives a copy, and no acknowledgement waits for it.
        case followed(NodeID, Mark?)
        /// It had every acknowledged frame. A frame is acknowledged only when the candidate has it too.
        case counted(NodeID)
        /// It was counted until one of its confirmations was overdue. Acknowledgements do not wait for it.
        case late(NodeID, Mark?)

        /// A position that the candidate must reach to be counted, and the time at which it was set.
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

        /// The same candidate with another mark.
        func marked(_ mark: Mark?) -> Self {
            switch self {
            case .followed(let node, _): .followed(node, mark)
            case .late(let node, _): .late(node, mark)
            case .none, .counted: self
            }
        }
    }

    /// Whether the standby, and a counted candidate, confirm in time.
    enum Protection: Sendable {
        /// No confirmation is outstanding.
        case kept
        case owed(Debt)
        /// A confirmation is overdue. Frames are acknowledged without it.
        case lost(Debt?)

        /// The confirmation that is outstanding longest: of every sequence below `next`, since a time.
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

    /// A subscription of this node at another node.
    struct Upstream: Sendable {
        let id: SubscriptionID
        let node: NodeID
        /// The position after which it begins; nil: the live picture.
        let after: FramePosition?
        var isOpen = false
    }

    /// When a subscription is tried again, and at which node first.
    struct Retry: Sendable {
        /// The earliest time; nil: at once.
        var at: MonotonicTime?
        var waits: Backoff
        /// The owner failed, so the standby is asked next.
        var asksStandby = false
    }
}
