import CApusNet
import Glibc

/// Datagrams to send, combined into runs that the kernel splits (UDP_SEGMENT).
///
/// A run has datagrams to one destination through one socket, all of the same size except the last, which may be
/// shorter. It costs one message and one pass through the kernel whatever its length, and that pass is nearly the whole
/// cost of a relayed packet (D8). A single datagram is not copied. Those of a run are copied together before they are
/// sent, since each piece of memory costs the kernel more than a copy that stays in the cache. Runs keep the order of
/// their datagrams. The order between destinations is not kept.
///
/// Concurrency model: confined to the plane's thread. The memory that it refers to must stay valid until ``flush()``.
package struct SendBatch: ~Copyable {
    /// The run of a destination in the batch with this stamp.
    package struct Mark: Sendable {
        var stamp: UInt32 = 0
        var run: UInt32 = 0
        package init() {}

        fileprivate init(stamp: UInt32, run: UInt32) {
            self.stamp = stamp
            self.run = run
        }
    }

    /// A datagram, or several consecutive ones of one length with the same header.
    private struct Packet {
        /// First, so that the packet's address is the header's.
        var head: UInt32
        var length: UInt32
        var base: UnsafeMutableRawPointer
        var next: UInt32
        var count: UInt32 = 1
        /// Bytes from the start of one to that of the next.
        var stride: UInt32 = 0
    }

    private struct Run {
        var name: UnsafeMutableRawPointer?
        var dropped: UnsafeMutablePointer<UInt64>
        var nameLength: UInt32
        var socket: Int32
        /// The size of each datagram with its header.
        var size: UInt32
        var total: UInt32
        var count: UInt32
        var first: UInt32
        var last: UInt32
        var hasHead: Bool
        var isClosed: Bool
        var marks: UInt32
    }

    /// ``marks`` of datagrams whose hop limit is exhausted: they are dropped and counted.
    package static let expired = UInt32.max
    private static let controlBytes = Int(APUS_SEND_CONTROL_BYTES)

    /// Datagrams of one batch.
    package static let packetsMax = 4_096
    /// The most runs of one batch, which is the most messages that the kernel accepts at once.
    package static let runsMax = 1_024
    /// The most datagrams of one run that every kernel with UDP_SEGMENT accepts.
    package static let runCountMax = 64
    /// The most bytes of one run, below an IP packet's with room for its headers.
    package static let runBytesMax: UInt32 = 65_000
    /// Up to this size a datagram is copied behind its header: two pieces of memory cost the kernel more.
    private static let headedBytesMax: UInt32 = 2_048
    /// The most bytes of runs that are copied together before they are sent: at least one run, and few enough to stay
    /// in the cache.
    private static let gatheredBytesMax = 131_072
    private static let none = UInt32.max
    /// How often a datagram is sent again after it met the error of an earlier one: another error may come in between.
    static let retriesMax = 2

    private let segmentMax: UInt32
    private let countMax: UInt32
    private let packets: UnsafeMutablePointer<Packet>
    private let runs: UnsafeMutablePointer<Run>
    private let vectors: UnsafeMutablePointer<iovec>
    private let messages: UnsafeMutablePointer<apus_message>
    private let controls: UnsafeMutableRawPointer
    private let gathered: UnsafeMutableRawPointer
    /// TTL (hop limit) in the low byte, DSCP and ECN in the next one, of the datagrams added from now on; 0 for those
    /// of the socket. Datagrams of one run have the same marks.
    package var marks: UInt32 = 0
    private var packetCount: UInt32 = 0
    private var datagramCount: UInt32 = 0
    private var runCount: UInt32 = 0
    private var stamp: UInt32 = 1
    /// Datagrams that the kernel did not accept.
    package private(set) var dropped: UInt64 = 0
    /// Runs that the kernel refused to split.
    package private(set) var unsegmented: UInt64 = 0

    /// - Parameters:
    ///   - segmentMax: the longest datagram that is put into a run with others.
    ///   - canSegment: true if the kernel splits runs. Without it each datagram is a message.
    ///   - runCountMax: the most datagrams of one run that the kernel accepts.
    package init(segmentMax: Int, canSegment: Bool, runCountMax: Int = Self.runCountMax) {
        self.segmentMax = UInt32(segmentMax)
        countMax = canSegment ? UInt32(runCountMax) : 1
        packets = .allocate(capacity: Self.packetsMax)
        runs = .allocate(capacity: Self.runsMax)
        // A header and a datagram.
        vectors = .allocate(capacity: Self.runsMax * 2)
        messages = .allocate(capacity: Self.runsMax)
        controls = .allocate(byteCount: Self.runsMax * Self.controlBytes, alignment: 64)
        gathered = .allocate(byteCount: Self.gatheredBytesMax, alignment: 4_096)
        for index in 0..<Self.runsMax {
            (messages + index).initialize(to: apus_message())
            apus_control_prepare(controls + index * Self.controlBytes)
        }
    }

    deinit {
        packets.deallocate()
        runs.deallocate()
        vectors.deallocate()
        messages.deallocate()
        controls.deallocate()
        gathered.deallocate()
    }

    /// Runs that wait for ``flush()``.
    package var pendingRuns: Int { Int(runCount) }
    /// True if ``flush()`` must be called before the next datagram.
    @inline(__always)
    package var isFull: Bool { datagramCount == UInt32(Self.packetsMax) || runCount == UInt32(Self.runsMax) }

    /// Adds a datagram. The batch must not be full.
    ///
    /// - Parameters:
    ///   - mark: the destination's own.
    ///   - address: the destination in the kernel's form; nil for a connected socket.
    ///   - head: four bytes before the datagram, in memory order.
    ///   - dropped: counts the destination's datagrams that the kernel does not accept.
    @inline(__always)
    package mutating func add(
        _ base: UnsafeMutableRawPointer, _ length: UInt32, head: UInt32?, mark: inout Mark, socket: Int32,
        address: UnsafeMutablePointer<RawAddress>?, dropped: UnsafeMutablePointer<UInt64>
    ) {
        guard marks != Self.expired else {
            self.dropped &+= 1
            dropped.pointee &+= 1
            return
        }
        let size = length &+ (head == nil ? 0 : 4)
        let packet = packetCount
        packetCount = packet &+ 1
        datagramCount = datagramCount &+ 1
        packets[Int(packet)] = Packet(head: head ?? 0, length: length, base: base, next: Self.none)
        if mark.stamp == stamp {
            let run = runs + Int(mark.run)
            if !run.pointee.isClosed, size <= run.pointee.size, size > 0, run.pointee.count < countMax,
                run.pointee.total &+ size <= Self.runBytesMax, run.pointee.hasHead == (head != nil),
                run.pointee.socket == socket, run.pointee.marks == marks
            {
                packets[Int(run.pointee.last)].next = packet
                run.pointee.last = packet
                run.pointee.count = run.pointee.count &+ 1
                run.pointee.total = run.pointee.total &+ size
                if size < run.pointee.size { run.pointee.isClosed = true }
                return
            }
        }
        mark = Mark(stamp: stamp, run: runCount)
        // SAFETY: the storage is the first member of RawAddress, and the row that holds it outlives the batch.
        let name = address.map { UnsafeMutableRawPointer($0) }
        runs[Int(runCount)] = Run(
            name: name, dropped: dropped, nameLength: address?.pointee.length ?? 0, socket: socket, size: size,
            total: size, count: 1, first: packet, last: packet, hasHead: head != nil,
            isClosed: size > segmentMax || size == 0, marks: marks)
        runCount = runCount &+ 1
    }

    /// Adds datagrams of the same length, header and destination as the last added one, which they follow in memory.
    ///
    /// - Parameters:
    ///   - count: the number of datagrams.
    ///   - stride: bytes from the start of one to that of the next.
    ///   - mark: the destination's own.
    /// - Returns: the number of added datagrams; 0 if they need a run of their own, or the batch is full.
    @inline(__always)
    package mutating func addMore(_ count: Int, stride: Int, mark: Mark) -> Int {
        guard mark.stamp == stamp else { return 0 }
        let run = runs + Int(mark.run)
        guard run.pointee.last &+ 1 == packetCount, !run.pointee.isClosed, run.pointee.marks == marks else { return 0 }
        let packet = packets + Int(run.pointee.last)
        let stride = UInt32(truncatingIfNeeded: stride)
        // A datagram shorter than its run's size closes the run.
        guard packet.pointee.count == 1 || packet.pointee.stride == stride else { return 0 }
        let size = run.pointee.size
        let room = min(
            countMax &- run.pointee.count, (Self.runBytesMax &- run.pointee.total) / size,
            UInt32(Self.packetsMax) &- datagramCount)
        let taken = min(UInt32(truncatingIfNeeded: count), room)
        guard taken > 0 else { return 0 }
        packet.pointee.stride = stride
        packet.pointee.count = packet.pointee.count &+ taken
        run.pointee.count = run.pointee.count &+ taken
        run.pointee.total = run.pointee.total &+ taken &* size
        datagramCount = datagramCount &+ taken
        return Int(taken)
    }

    /// Passes everything to the kernel. What it does not accept is counted and dropped.
    package mutating func flush() {
        guard runCount > 0 else { return }
        var run = 0
        let count = Int(runCount)
        while run < count {
            let first = run
            let socket = runs[run].socket
            var used = 0
            while run < count, runs[run].socket == socket {
                let total = Self.isCopied(runs + run) ? Int(runs[run].total) : 0
                guard used &+ total <= Self.gatheredBytesMax else { break }
                fill(run - first, with: run, gathered + used)
                used &+= total
                run += 1
            }
            send(socket, runs: first..<run)
        }
        packetCount = 0
        datagramCount = 0
        runCount = 0
        stamp &+= 1
        if stamp == 0 { stamp = 1 }
    }

    /// True if a run's datagrams are copied together, each behind its header.
    @inline(__always)
    private static func isCopied(_ run: UnsafeMutablePointer<Run>) -> Bool {
        run.pointee.count > 1 || (run.pointee.hasHead && run.pointee.size <= headedBytesMax)
    }

    /// - Parameter place: memory for the run's bytes, if they are copied.
    @inline(__always)
    private func fill(_ message: Int, with index: Int, _ place: UnsafeMutableRawPointer) {
        let run = runs + index
        let header = messages + message
        let vector = vectors + 2 &* message
        header.pointee.header.msg_name = run.pointee.name
        header.pointee.header.msg_namelen = run.pointee.nameLength
        header.pointee.header.msg_iov = vector
        guard Self.isCopied(run) else {
            let packet = packets + Int(run.pointee.first)
            let headCount = run.pointee.hasHead ? 1 : 0
            // SAFETY: the head is the first member of memory that this batch owns.
            vector[0] = iovec(iov_base: UnsafeMutableRawPointer(packet), iov_len: 4)
            vector[headCount] = iovec(iov_base: packet.pointee.base, iov_len: Int(packet.pointee.length))
            header.pointee.header.msg_iovlen = 1 &+ headCount
            setControl(header, run, message)
            return
        }
        gather(run, place)
        vector[0] = iovec(iov_base: place, iov_len: Int(run.pointee.total))
        header.pointee.header.msg_iovlen = 1
        setControl(header, run, message)
    }

    /// The control data of a run: where to split it, and its marks. It is as short as possible: one part costs the
    /// kernel no memory of its own.
    @inline(__always)
    private func setControl(
        _ header: UnsafeMutablePointer<apus_message>, _ run: UnsafeMutablePointer<Run>, _ message: Int
    ) {
        let control = controls + message &* Self.controlBytes
        let segment = Int(APUS_SEGMENT_PART)
        var (start, end) = (segment &+ 1, segment &+ 1)
        if run.pointee.count > 1 {
            apus_set_segment(control, UInt16(truncatingIfNeeded: run.pointee.size))
            start = segment
        }
        if run.pointee.marks != 0 {
            apus_set_marks(control, run.pointee.marks)
            // Sockets that are not connected have 0 for DSCP and ECN by default.
            let isPlain = run.pointee.marks & 0xFF00 == 0
            // SAFETY: a name is a RawAddress, which begins with the family.
            switch run.pointee.name.map({ Int32($0.load(as: UInt16.self)) }) {
            case AF_INET: end = segment &+ (isPlain ? 2 : 3)
            case AF_INET6:
                end = start == segment ? segment &+ 1 : segment
                start = isPlain ? 1 : 0
            default: end = Int(APUS_PART_COUNT)
            }
        }
        let size = Int(APUS_PART_BYTES)
        header.pointee.header.msg_control = end > start ? control + start &* size : nil
        header.pointee.header.msg_controllen = (end &- start) &* size
    }

    /// Copies a run's datagrams, each behind its header, into one piece.
    @inline(__always)
    private func gather(_ run: UnsafeMutablePointer<Run>, _ place: UnsafeMutableRawPointer) {
        let headCount = run.pointee.hasHead ? 4 : 0
        var out = place
        var packet = run.pointee.first
        repeat {
            let entry = packets + Int(packet)
            let length = Int(entry.pointee.length)
            let stride = Int(entry.pointee.stride)
            var base = entry.pointee.base
            var left = entry.pointee.count
            repeat {
                if headCount > 0 { out.storeBytes(of: entry.pointee.head, as: UInt32.self) }
                memcpy(out + headCount, base, length)
                out += headCount &+ length
                base += stride
                left &-= 1
            } while left > 0
            packet = entry.pointee.next
        } while packet != Self.none
    }

    /// True if an errno of a send may be that of an earlier datagram: the next call returns a pending ICMP error, and
    /// does nothing else (icmp_err_convert and its equivalent for IPv6).
    static func mayTellOfEarlier(_ error: Int32) -> Bool {
        switch error {
        case EINTR, ECONNREFUSED, EHOSTUNREACH, EHOSTDOWN, ENETUNREACH, ENONET, ENOPROTOOPT, EPROTO, EACCES, EMSGSIZE,
            EOPNOTSUPP:
            true
        default: false
        }
    }

    private mutating func send(_ socket: Int32, runs range: Range<Int>) {
        var done = 0
        var retries = 0
        while done < range.count {
            let result = apus_send_messages(socket, messages + done, UInt32(range.count - done))
            if result > 0 {
                done += Int(result)
                retries = 0
                continue
            }
            let run = runs + range.lowerBound + done
            switch -result {
            case EINVAL, EMSGSIZE, EIO, EOPNOTSUPP:
                if run.pointee.count > 1 {
                    unsegmented &+= 1
                    sendSingly(done, run)
                    done += 1
                    retries = 0
                    continue
                }
            default: break
            }
            if retries < Self.retriesMax, Self.mayTellOfEarlier(-result) {
                retries += 1
                continue
            }
            drop(run.pointee.count, run)
            done += 1
            retries = 0
        }
    }

    private mutating func drop(_ count: UInt32, _ run: UnsafeMutablePointer<Run>) {
        dropped &+= UInt64(count)
        run.pointee.dropped.pointee &+= UInt64(count)
    }

    /// Sends the datagrams of a run, which were copied together, one by one: its size exceeds the path MTU, or the
    /// device cannot split.
    private mutating func sendSingly(_ message: Int, _ run: UnsafeMutablePointer<Run>) {
        var single = messages[message]
        var vector = single.header.msg_iov[0]
        var left = Int(run.pointee.total)
        // The marks stay.
        apus_set_segment(controls + message &* Self.controlBytes, 0)
        withUnsafeMutablePointer(to: &vector) { vector in
            single.header.msg_iov = vector
            while left > 0 {
                let size = min(left, Int(run.pointee.size))
                vector.pointee.iov_len = size
                var result: Int32 = 0
                for _ in 0...Self.retriesMax {
                    result = apus_send_messages(run.pointee.socket, &single, 1)
                    if result == 1 || !Self.mayTellOfEarlier(-result) { break }
                }
                if result != 1 { drop(1, run) }
                vector.pointee.iov_base += size
                left -= size
            }
        }
    }
}
