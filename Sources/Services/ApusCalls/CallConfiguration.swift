/// The bounds of calls (D13, CALL-3, CALL-6).
///
/// A call has its own numbers where the caller chooses them, such as the time-out, and these are their limits.
package struct CallConfiguration: Sendable, Hashable {
    /// The most legs that a call rings, without the caller's. A call with more is refused with −2500.
    package var legsMax = 16
    /// The longest ``CallExtra``, in bytes. A longer one is refused with −2500.
    package var extraByteCountMax = 4 << 10
    /// The time-out of a call whose caller names none.
    package var ringTime: Duration = .seconds(30)
    /// The shortest and the longest time-out that a caller may name. Others are refused with −2500.
    package var ringTimeMin: Duration = .seconds(5)
    package var ringTimeMax: Duration = .seconds(120)
    /// The time from the accept until the caller and the winner have media. Then the call ends with −2531.
    package var connectTime: Duration = .seconds(30)
    /// The longest duration of a call from the accept. Then it ends with −2530.
    package var durationMax: Duration = .seconds(4 * 3600)
    /// The time in which a party whose session has ended may return. Then it has left the call with −2532.
    package var grace: Duration = .seconds(15)
    /// How long a party stays claimed without a renewal. A call renews its claims when a third of this time has passed.
    /// After the loss of a call's state its parties are free again after this time.
    package var claimTime: Duration = .seconds(60)
    /// A notice that is not confirmed is sent again after this time, and then after twice the time before…
    package var resendAfter: Duration = .seconds(1)
    /// …at most after this time.
    package var resendAfterMax: Duration = .seconds(8)
    /// How long a call is kept after its end, for events that come late.
    package var endedTime: Duration = .seconds(60)
    /// How long an ended call is kept at most, if its end or its parties are not confirmed.
    package var endedTimeMax: Duration = .seconds(120)
    /// How long an ended call is kept at most whose record cannot be written.
    package var recordTimeMax: Duration = .seconds(2 * 3600)
    /// The longest delay before such a record is tried again. Long enough for the call to leave memory in between.
    package var recordRetryMax: Duration = .seconds(300)
    /// How long the media channels are kept after a hang-up if the caller has asked for it (CALL-16).
    package var keepConnectTime: Duration = .seconds(60)

    /// The calls that the clients of an account place at one node in a minute; also the burst. One more is refused with
    /// 10007.
    package var startsPerMinute = 60

    /// How often a node asks the call whether a client may still publish and play in it. The end of a call ends its
    /// media at once; this is for a notice that is lost, and for rights that are.
    package var mediaCheckInterval: Duration = .seconds(20)

    package init() {}
}
