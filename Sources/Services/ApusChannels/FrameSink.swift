package import ApusCore
package import ApusMedia
package import NIOCore

/// A receiver of a channel's frames: a client's connection, a link to another node, or a receiver within this node.
///
/// Isolation: every member is used on ``eventLoop`` only.
package protocol FrameSink: AnyObject, Sendable {
    var eventLoop: any EventLoop { get }
    /// Where the frames go. The fan-out stores it and calls it directly, without the sink: every object that is
    /// accessed per viewer and frame costs a cache miss.
    var output: FrameOutput { get }
    /// What the channel may do if the receiver is slow.
    var need: ReceiverNeed { get }
    /// The stream went live, waits, ended, or lost frames. Not called before ``Receipt/open()``.
    func streamChanged(_ stream: StreamNumber, to state: StreamPhase)
    /// The output could not accept everything that is available for the receiver.
    func fellBehind()
}

/// Which frames a receiver needs.
package enum ReceiverNeed: Sendable, Hashable {
    /// Live frames. If it is slow, it continues at a key frame.
    case viewer
    /// Every frame that the channel holds. It is notified only of frames that the channel no longer holds.
    case recorder
}

/// The form in which a sink receives frames.
package enum FrameOutput: Sendable {
    /// The bytes of whole link frames, made once for all receivers of an event loop.
    case bytes(any FramePort)
    /// The frames as the channel holds them, for a receiver within this node.
    case frames(any FrameReceiver)
}

/// A receiver of frames within this node, such as a recorder.
///
/// Isolation: every member is used on the sink's event loop only.
package protocol FrameReceiver: AnyObject, Sendable {
    /// False while the receiver has no room. The sink calls ``Receipt/becameWritable()`` when it is true again.
    var isWritable: Bool { get }
    func receive(_ batch: FanOutStateMachine.FrameBatch, now: MonotonicTime)
}

/// The output of one connection, for the bytes of a sink.
///
/// Isolation: every member is used on the sink's event loop only.
package protocol FramePort: AnyObject, Sendable {
    /// False while the socket is full. The sink calls ``Receipt/becameWritable()`` when it is true again.
    var isWritable: Bool { get }
    /// Sends whole link frames. `now` saves the port a clock read for each receiver.
    func send(_ bytes: ByteBuffer, now: MonotonicTime)
    /// ``send(_:now:)`` follows soon. Prefetches what it accesses in addition to this object.
    func prefetch()
}

extension FramePort {
    /// With few receivers the objects are in the cache.
    package func prefetch() {}
}

extension FrameSink {
    package var need: ReceiverNeed { .viewer }

    /// A sink with a separate connection needs no turns: it reports when the connection accepts bytes again.
    package func fellBehind() {}
}

extension FrameSink where Self: FramePort {
    package var output: FrameOutput { .bytes(self) }
}

extension FrameSink where Self: FrameReceiver {
    package var output: FrameOutput { .frames(self) }
}

extension FrameOutput {
    var isWritable: Bool {
        switch self {
        case .bytes(let port): port.isWritable
        case .frames(let receiver): receiver.isWritable
        }
    }
}

/// The number of a channel at a node. It is the correlation of the channel's media frames, the same on every connection
/// of that node.
package typealias StreamNumber = UInt32

/// The state of a stream, reported to its receiver.
package enum StreamPhase: Sendable, Equatable {
    /// Frames flow.
    case live
    /// There is no publisher, or its node is being replaced.
    case waiting
    /// Frames were skipped because the receiver was too slow.
    case skipped(UInt64)
    /// The stream ended. The error has the reason.
    case ended(ApusError)
}

/// The publisher of a channel at this node: a device's connection.
///
/// Isolation: every member is called on ``eventLoop`` only.
package protocol PublisherSink: AnyObject, Sendable {
    var eventLoop: any EventLoop { get }
    /// The primary accepts the frames, under this epoch, from `next` on. Called once.
    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool)
    /// Every sequence number below `next` is acknowledged.
    func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64)
    /// The publisher must send again from `next`, under this epoch, which rarely differs from the previous one.
    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64)
    /// The stream is refused or taken over. Called once; nothing follows.
    func publishFailed(_ stream: StreamNumber, _ error: ApusError)
}

/// A publisher's offer when it opens its stream.
package struct PublishOffer: Sendable, Equatable {
    /// The publisher's epoch; 0 if it requests one.
    package var epoch: UInt32
    /// A random number for each start of the publisher; 0 if unknown.
    package var instance: UInt64
    /// The oldest sequence that the publisher still holds.
    package var oldest: UInt64
    /// True if the cluster assigned ``epoch`` to this instance.
    package var resumes: Bool
    /// True if the owner of the device's identity confirmed that its session is the newest. Otherwise the publisher may
    /// only continue its current run, so that a superseded one cannot start another (IV-A5).
    package var isConfirmed: Bool

    package init(epoch: UInt32, instance: UInt64, oldest: UInt64, resumes: Bool = false, isConfirmed: Bool = true) {
        self.isConfirmed = isConfirmed
        self.epoch = epoch
        self.instance = instance
        self.oldest = oldest
        self.resumes = resumes
    }

    /// True if it continues this instance's run under this epoch.
    func continues(_ run: (epoch: UInt32, instance: UInt64)) -> Bool {
        instance != 0 && epoch != 0 && (epoch, instance) == run
    }

    /// True if the publisher uses the epoch in the answer, whatever it requested.
    package var takesEpoch: Bool { epoch == 0 || resumes }
}
