import CApusNet

/// Pauses between rounds, if ``RestStateMachine`` finds that they save CPU time.
extension PacketPlane {
    /// Counts the round's messages, and pauses if that saves CPU time and nothing was left to do.
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
