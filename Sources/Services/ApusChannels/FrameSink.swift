package import ApusCore
package import NIOCore

/// Something that receives a channel's frames: a client's connection or a link to another node.
///
/// Isolation: every member is used on ``eventLoop`` only.
package protocol FrameSink: AnyObject, Sendable {
    var eventLoop: any EventLoop { get }
    /// What the frames are sent through. The fan-out keeps it and sends past the sink: for each viewer and frame every
    /// object that is touched costs a look into memory that is cold by then.
    var port: any FramePort { get }
    /// The stream went live, waits, ended, or left frames out; not called before ``Receipt/open()``.
    func streamChanged(_ stream: StreamNumber, to state: StreamPhase)
    /// The port took not all that the receiver could have.
    func fellBehind()
}

/// What a sink's bytes go through: the way out of one connection.
///
/// Isolation: every member is used on the sink's event loop only.
package protocol FramePort: AnyObject, Sendable {
    /// False while the socket is behind; the sink calls ``Receipt/becameWritable()`` when it is true again.
    var isWritable: Bool { get }
    /// Sends whole link frames; `now` spares the port a look at the clock for each receiver.
    func send(_ bytes: ByteBuffer, now: MonotonicTime)
    /// ``send(_:now:)`` comes soon: brings what it touches besides this object into the processor's cache.
    func prefetch()
}

extension FramePort {
    /// Where receivers are few, their objects are not cold.
    package func prefetch() {}
}

extension FrameSink {
    /// A connection of its own needs no turn: it says itself when it takes bytes again.
    package func fellBehind() {}
}

extension FrameSink where Self: FramePort {
    package var port: any FramePort { self }
}

/// The number of a channel at a node: the correlation of its media frames, the same on every
/// connection of that node.
package typealias StreamNumber = UInt32

/// What a receiver is told of its stream.
package enum StreamPhase: Sendable, Equatable {
    /// Frames flow.
    case live
    /// No publisher, or its node is being replaced.
    case waiting
    /// Frames were left out because the receiver was too slow.
    case skipped(UInt64)
    /// The stream ended; the number says why.
    case ended(ApusError)
}

/// Something that sends a channel's frames through this node's door: a device's connection.
///
/// Isolation: every member is called on ``eventLoop`` only.
package protocol PublisherSink: AnyObject, Sendable {
    var eventLoop: any EventLoop { get }
    /// The primary takes the frames, which have an epoch, and wants them from `next`; called once.
    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool)
    /// Every sequence below `next` is safe.
    func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64)
    /// Send again from `next`; the frames have an epoch, seldom another than before.
    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64)
    /// The stream is refused or taken over; called once, and nothing after it.
    func publishFailed(_ stream: StreamNumber, _ error: ApusError)
}

/// What a publisher says when it opens its stream.
package struct PublishOffer: Sendable, Equatable {
    /// The publisher's epoch; 0: it wants one.
    package var epoch: UInt32
    /// Random, one per start of the publisher; 0: not known.
    package var instance: UInt64
    /// The oldest sequence that the publisher still holds.
    package var oldest: UInt64
    /// The cluster gave ``epoch`` to this instance.
    package var resumes: Bool
    /// The owner of the device's identity said that its session is the newest. Without that the publisher only goes on
    /// with the run that it has already, so that a superseded one begins nothing (IV-A5).
    package var isConfirmed: Bool

    package init(epoch: UInt32, instance: UInt64, oldest: UInt64, resumes: Bool = false, isConfirmed: Bool = true) {
        self.isConfirmed = isConfirmed
        self.epoch = epoch
        self.instance = instance
        self.oldest = oldest
        self.resumes = resumes
    }

    /// It goes on with the run of this instance under this epoch.
    func continues(_ run: (epoch: UInt32, instance: UInt64)) -> Bool {
        instance != 0 && epoch != 0 && (epoch, instance) == run
    }

    /// The publisher numbers its frames with the epoch that it is answered, whatever it asked for.
    package var takesEpoch: Bool { epoch == 0 || resumes }
}
