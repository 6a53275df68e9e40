/// Certificates that an earlier release made, with swift-certificates 1.21 (docs/decisions/52).
package enum EarlierCertificates {
    /// An authority of the cluster `home`.
    package static let authority = """
        -----BEGIN CERTIFICATE-----
        MIIBsDCCAVagAwIBAgIVALVn0AU0CYKgyiv23OzOc8niKJZ4MAoGCCqGSM49BAMC
        MDQxDTALBgNVBAoMBEFwdXMxIzAhBgNVBAMMGkFwdXMgY2x1c3RlciBob21lIGI1
        NjdkMDA1MB4XDTI2MDkyMTEzMTMyMFoXDTM2MDkxODE0MTMyMFowNDENMAsGA1UE
        CgwEQXB1czEjMCEGA1UEAwwaQXB1cyBjbHVzdGVyIGhvbWUgYjU2N2QwMDUwWTAT
        BgcqhkjOPQIBBggqhkjOPQMBBwNCAAShkxIRJiCM1w9fzfOl/uQpagFS1ZBayCvT
        9/HtrxQLcCoDTw7X5fC3qM+Js1Hw6wP8gjtgpcm+iPBN21vEn3Cdo0UwQzASBgNV
        HRMBAf8ECDAGAQH/AgEAMA4GA1UdDwEB/wQEAwIBBjAdBgNVHQ4EFgQU0J5smks6
        HzLnvzWb3vCuZCyjpPEwCgYIKoZIzj0EAwIDSAAwRQIgTOxPEcI3zf3kddBejAmg
        xHQm8fwJG2kiwTpqfxGCctkCIQDR+F1OPGEb7i/8OKl1Yv25GdhdiMLXrvsG/Anz
        kx8NiQ==
        -----END CERTIFICATE-----
        """

    /// A certificate that ``authority`` issued for node n1.
    package static let node = """
        -----BEGIN CERTIFICATE-----
        MIICODCCAd6gAwIBAgIVANR3iYoletPn9cZ3GjC/WzHB1k2zMAoGCCqGSM49BAMC
        MDQxDTALBgNVBAoMBEFwdXMxIzAhBgNVBAMMGkFwdXMgY2x1c3RlciBob21lIGI1
        NjdkMDA1MB4XDTI2MDkyMTEzMTMyMFoXDTI4MDkyMDE0MTMyMFowHDENMAsGA1UE
        CgwEQXB1czELMAkGA1UEAwwCbjEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASw
        fdlb6Xp8ATyF4rlpWNDHE5KEetg+fA61nw/xlpIVeFdfHJ0n4WNU1/sxFMwlo13g
        NeEfB88D6m+1i9tQLUXno4HkMIHhMAwGA1UdEwEB/wQCMAAwDgYDVR0PAQH/BAQD
        AgeAMB0GA1UdJQQWMBQGCCsGAQUFBwMBBggrBgEFBQcDAjBiBgNVHREEWzBZggls
        b2NhbGhvc3SHBH8AAAGHEAAAAAAAAAAAAAAAAAAAAAGCDGhvc3QuZXhhbXBsZYcE
        CgAABYcQ/QAAAAAAAAAAAAAAAAAABYYOYXB1czovL25vZGUvbjEwHQYDVR0OBBYE
        FLMRik3Onxo3EOqf/mCLByYbf7ruMB8GA1UdIwQYMBaAFNCebJpLOh8y5781m97w
        rmQso6TxMAoGCCqGSM49BAMCA0gAMEUCIETSrUgLuS210t43aOgf14sf0xxmMbzQ
        No7xnv18eS/xAiEAn8ujHtlgLHcHcOgZJHykk6u/OIsbR4RaKPPx2vNQI+Q=
        -----END CERTIFICATE-----
        """

    /// A certificate that ``authority`` issued for client listeners.
    package static let clients = """
        -----BEGIN CERTIFICATE-----
        MIICFzCCAb2gAwIBAgIUJ8E/eT9ITtFqU363lMAaASoWCzwwCgYIKoZIzj0EAwIw
        NDENMAsGA1UECgwEQXB1czEjMCEGA1UEAwwaQXB1cyBjbHVzdGVyIGhvbWUgYjU2
        N2QwMDUwHhcNMjYwOTIxMTMxMzIwWhcNMjgwOTIwMTQxMzIwWjAuMQ0wCwYDVQQK
        DARBcHVzMR0wGwYDVQQDDBRBcHVzIGNsaWVudCBsaXN0ZW5lcjBZMBMGByqGSM49
        AgEGCCqGSM49AwEHA0IABARCCp/siD35QuufpDk3hLEdsfprLbV+nLBSkYRRwCW3
        D84EVgKwvCpXBFQFbIry/m+tvkfHxUbKBYz8qCHrqBKjgbIwga8wDAYDVR0TAQH/
        BAIwADAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0lBAwwCgYIKwYBBQUHAwEwOgYDVR0R
        BDMwMYIJbG9jYWxob3N0hwR/AAABhxAAAAAAAAAAAAAAAAAAAAABggxkb29yLmV4
        YW1wbGUwHQYDVR0OBBYEFDtJAS2060aJK+x54B0Qu15OLZZiMB8GA1UdIwQYMBaA
        FNCebJpLOh8y5781m97wrmQso6TxMAoGCCqGSM49BAMCA0gAMEUCIFXkTKr2jIA/
        scPbZKi9R4DJJ0Zk11pwtv8nXXTm98QfAiEApygroA9ZBFrgWcc4BE2uEkj1Ge9t
        hksaSBUStlDH67E=
        -----END CERTIFICATE-----
        """
}
