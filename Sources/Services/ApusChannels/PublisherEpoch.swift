/// Decides which epoch a publisher gets from the channel's primary (IV-C1, D7).
///
/// Viewers compare positions by epoch first, so the epochs of a channel only grow. The primary assigns them; the
/// camera's clock is never used. A new instance gets an epoch above all known ones, and at least the primary's Unix
/// seconds, so that epochs grow even if no node remembers the channel. An instance that returns keeps its epoch.
///
/// An epoch that a client claims may be at most ``aheadMax`` beyond the primary's clock, so that no claim exhausts the
/// numbers. A client that brings its own epoch, as in the first version of the protocol, keeps it if it is not below
/// the known one.
///
/// Pure: a value for one decision.
package struct PublisherEpoch: Sendable {
    package enum Answer: Sendable, Equatable {
        case given(UInt32)
        /// 10024: another instance has a higher epoch.
        case refused
    }

    /// The newest epoch of any frame or publisher of the channel; 0 if none is known.
    package var known: UInt32
    /// The instance of the epoch ``known``; 0 if unknown.
    package var holder: UInt64
    /// The newest epoch of the positions that receivers reported; 0 without one.
    package var seen: UInt32
    /// The primary's clock, in Unix seconds.
    package var wallSeconds: UInt32
    /// How far an epoch that a client claims may be ahead of ``wallSeconds``, in seconds.
    package var aheadMax: UInt32

    package init(known: UInt32, holder: UInt64, seen: UInt32, wallSeconds: UInt32, aheadMax: UInt32) {
        (self.known, self.holder, self.seen) = (known, holder, seen)
        (self.wallSeconds, self.aheadMax) = (wallSeconds, aheadMax)
    }

    /// The publisher's epoch.
    package func answer(to offer: PublishOffer) -> Answer {
        let isHolder = holder != 0 && holder == offer.instance
        if isHolder, offer.epoch <= known { return .given(known) }
        if offer.epoch == 0 { return .given(next) }
        if offer.epoch > known {
            if offer.epoch <= bound { return .given(offer.epoch) }
            return offer.takesEpoch ? .given(next) : .refused
        }
        if offer.epoch == known, holder == 0 { return .given(known) }
        // If a higher epoch than this instance's is known, its holder came later.
        let isSuperseded = holder != 0 && offer.epoch < known
        return offer.takesEpoch && !isSuperseded ? .given(next) : .refused
    }

    /// The largest epoch that is accepted.
    private var bound: UInt32 { wallSeconds.addingSaturating(aheadMax) }

    private var next: UInt32 {
        let believed = seen <= bound ? seen : 0
        return max(known.addingSaturating(1), believed.addingSaturating(1), wallSeconds)
    }
}

extension UInt32 {
    fileprivate func addingSaturating(_ other: UInt32) -> UInt32 {
        let (sum, isOver) = addingReportingOverflow(other)
        return isOver ? .max : sum
    }
}
