import CApusNet

/// Rests between rounds, where ``RestStateMachine`` finds that they pay.
extension PacketPlane {
    /// Counts what the round brought, and rests where that pays and nothing was left behind.
    @inline(__always)
    mutating func endRound() {
        round &+= 1
        guard received > 0 else { return }
        if configuration.restMicroseconds > 0 {
            if rests.roundEnded(messages: received, packets: carried, at: now) {
                rests.sliceEnded(at: now, cpu: apus_thread_time())
            }
            if rests.isResting, !isBehind {
                counters.rests &+= 1
                apus_rest(Int32(truncatingIfNeeded: configuration.restMicroseconds))
            }
        }
        (received, carried, isBehind) = (0, 0, false)
    }
}
